# docker build -t gpld .                                   for CPUs
# docker build -t gpld --build-arg EXTRAS=suite,cuda .     for NVIDIA's GPUs; run it with --gpus all
# docker run -v "$PWD/runs:/work/runs" gpld train cartpole-swingup --preset demo
FROM python:3.12-slim-bookworm

ARG EXTRAS=suite
# What MuJoCo draws with where there is no screen, for films and images.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libopengl0 libegl1 libegl-mesa0 libgl1-mesa-dri \
    && rm -rf /var/lib/apt/lists/*

COPY pyproject.toml README.md LICENSE /src/
COPY gpld /src/gpld
RUN pip install --no-cache-dir "/src[$EXTRAS,video]" && rm -rf /src

# Compiled programs, for users without a home too; `-v gpld-cache:/cache` keeps them.
RUN mkdir -m 1777 /cache
ENV XDG_CACHE_HOME=/cache
WORKDIR /work
ENTRYPOINT ["gpld"]
CMD ["doctor"]
