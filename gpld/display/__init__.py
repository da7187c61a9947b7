"""What people look at while runs train and when they end: progress, learning curves, a summary."""
