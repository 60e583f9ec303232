# Dockerfile - train_gpt2 in a container, compiled for the machine that builds it (scripts/README.md, "Containers")
#
#   --build-arg BASE=nvidia/cuda:13.0.3-cudnn-devel-ubuntu24.04    an image with nvcc, for DEVICE=cuda
#   --build-arg DEVICE=cuda          MARCH=x86-64-v3, CUDA_ARCHS="90a 120": as for make
ARG BASE=debian:12
FROM $BASE
ARG DEVICE=cpu
ARG MARCH=native
ARG CUDA_ARCHS=all
# So that a later make, as in quickstart.sh, finds everything built. mpirun refuses to run as root otherwise.
ENV DEVICE=$DEVICE MARCH=$MARCH CUDA_ARCHS=$CUDA_ARCHS OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
WORKDIR /train_gpt2
COPY . .
RUN scripts/install_deps.sh
RUN make -j"$(nproc)" && make install
CMD ["bash"]
