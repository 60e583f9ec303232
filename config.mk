# config.mk - what this machine has: CUDA and its GPUs, the compiler, libraries. The Makefile reads it.
#
# Variables set with ?= can be set on make's command line or in the environment.

comma     := ,
# Headers that scripts/bundle_deps.sh gathered for machines without network or packages, and cuDNN's frontend, which
# install_deps.sh downloads. Searched also before it exists: other flags would compile everything again.
BUNDLED   := build/deps/include

# ---- nvcc: on PATH, in $CUDA_HOME, or in the toolkit's default folder

NVCC      ?= $(firstword $(shell command -v nvcc 2>/dev/null) \
               $(wildcard $(CUDA_HOME)/bin/nvcc /usr/local/cuda/bin/nvcc))
# Ask nvcc itself for the toolkit's folder: the nvcc on PATH may be a wrapper script.
NVCC_HERE := $(if $(NVCC),$(shell $(NVCC) --dryrun -E -x cu /dev/null 2>&1 | sed -n 's/^\#\$$ _HERE_=//p'))
CUDA_ROOT := $(realpath $(patsubst %/bin,%,$(NVCC_HERE)))
GPU_FOUND := $(shell nvidia-smi -L 2>/dev/null | head -n 1)
DEVICE    ?= $(if $(and $(CUDA_ROOT),$(GPU_FOUND)),cuda,cpu)
ifeq ($(filter $(DEVICE),cuda cpu fibers),)
  $(error DEVICE is "$(DEVICE)"; expected cuda, cpu or fibers)
endif
ifeq ($(DEVICE),cuda)
  ifeq ($(CUDA_ROOT),)
    $(error DEVICE=cuda needs nvcc, which is neither on PATH nor in CUDA_HOME; install the CUDA toolkit, \
      set NVCC=/path/to/nvcc, or build with DEVICE=cpu)
  endif
endif

# ---- GPUs to compile for: CUDA_ARCHS="80 90a 120", or all

# Without CUDA_ARCHS: the GPUs of this machine that nvcc knows, or all if there is none. The PTX of the lowest is
# included as well, so that a later GPU can compile it; PTX of 90a runs on no other GPU, so compute_90 is used there.
ifeq ($(DEVICE),cuda)
ALL_ARCHS  := 80 90a
NVCC_KNOWS := $(patsubst sm_%,%,$(shell $(NVCC) --list-gpu-code 2>/dev/null))
GPUS_HERE  := $(subst .,,$(shell nvidia-smi --query-gpu=compute_cap --format=csv$(comma)noheader 2>/dev/null | \
                grep -xE '([89]|[1-9][0-9])\.[0-9]'))
CUDA_ARCHS ?= $(filter $(NVCC_KNOWS),$(GPUS_HERE))
ARCHS      := $(subst $(comma), ,$(CUDA_ARCHS))
ARCHS      := $(shell printf '%s\n' $(patsubst 90,90a,$(if $(ARCHS),$(ARCHS:all=$(ALL_ARCHS)),$(ALL_ARCHS))) | sort -nu)
ifneq ($(shell printf '%s\n' $(ARCHS) | grep -vxE '([89]|[1-9][0-9])[0-9][af]?'),)
  $(error CUDA_ARCHS is "$(CUDA_ARCHS)"; expected all, or numbers of 80 or more, such as "80 90a 120")
endif
PTX_ARCH   := $(patsubst %f,%,$(patsubst %a,%,$(firstword $(ARCHS))))
GENCODE    := $(foreach arch,$(ARCHS),-gencode arch=compute_$(arch),code=sm_$(arch)) \
              -gencode arch=compute_$(PTX_ARCH),code=compute_$(PTX_ARCH)
endif

# ---- locations of libraries

MULTIARCH := $(shell $(CXX) -print-multiarch 2>/dev/null)
# $(call library,FOLDER,NAME): the file itself, because Python's packages have no libNAME.so for -l to find.
LIB_DIRS  := lib64 lib lib/$(MULTIARCH)
library    = $(firstword $(foreach file,lib$(2).so lib$(2).so.*,$(wildcard $(LIB_DIRS:%=$(1)/%/$(file)))))

# Default search folders of compiler and linker. No flag may name them: with -isystem /usr/include before the
# headers of C++, g++ finds no stdlib.h.
SYSTEM    := $(foreach folder,/usr/include /usr/local/include /lib /lib64 /usr/lib /usr/lib64,\
               $(folder) $(folder)/$(MULTIARCH))
elsewhere  = $(filter-out $(SYSTEM),$(abspath $(1)))
includes   = $(addprefix -isystem ,$(call elsewhere,$(1)))
rpaths     = $(addprefix -Wl$(comma)-rpath$(comma),$(sort $(call elsewhere,$(1))))

# MPI: from mpicxx, pkg-config or build/deps, in this order; MPI_ROOT= names another folder. Without MPI the program
# runs one process.
MPI_SAYS   = $(shell mpicxx --showme:$(1) 2>/dev/null || mpicxx -$(1)-info 2>/dev/null || \
               pkg-config --$(2) ompi-c 2>/dev/null || pkg-config --$(2) mpich 2>/dev/null)
MPI_ROOT  ?= $(if $(call MPI_SAYS,link,libs),,$(wildcard $(CURDIR)/build/deps/openmpi))
MPI_HEADERS := $(if $(MPI_ROOT),$(MPI_ROOT)/include,$(patsubst -I%,%,$(filter -I%,$(call MPI_SAYS,compile,cflags))))
MPI_LIBS  := $(if $(MPI_ROOT),$(call library,$(MPI_ROOT),mpi) $(call rpaths,$(MPI_ROOT)/lib),\
               $(filter-out -lmpi_cxx -lmpicxx,$(filter -L% -l% -Wl$(comma)-rpath% -Wl$(comma)/%,\
               $(call MPI_SAYS,link,libs))))

# NVIDIA's libraries: in the toolkit, the system, or python3's packages (PyTorch installs them), the first of these
# folders that has both header and library. CUBLAS_ROOT=, CUDNN_ROOT= and NCCL_ROOT= name another folder; an empty
# CUDNN_ROOT= builds without cuDNN.
ifeq ($(DEVICE),cuda)
PYTHON    := $(shell python3 -c 'import nvidia; print(*nvidia.__path__)' 2>/dev/null)
ROOTS     := $(CUDA_ROOT) /usr $(wildcard $(PYTHON:%=%/*))
header     = $(wildcard $(1)/include/$(2) $(1)/include/$(MULTIARCH)/$(2))
root_with  = $(firstword $(foreach root,$(ROOTS),\
               $(and $(call header,$(root),$(1)),$(call library,$(root),$(2)),$(root))))
CUBLAS_ROOT    ?= $(or $(call root_with,cublasLt.h,cublasLt),$(CUDA_ROOT))
CUDNN_ROOT     ?= $(call root_with,cudnn.h,cudnn)
NCCL_ROOT      ?= $(call root_with,nccl.h,nccl)
# The header-only interface to cuDNN's graphs.
CUDNN_FRONTEND ?= $(patsubst %/cudnn_frontend.h,%,$(firstword $(wildcard $(addsuffix /cudnn_frontend.h,\
                    $(BUNDLED) $(CUDNN_ROOT)/include $(CUDA_ROOT)/include /usr/include \
                    $(PYTHON:%/nvidia=%/include)))))
# cuDNN compiles kernels with it, and its frontend links to it.
NVRTC_ROOT := $(call root_with,nvrtc.h,nvrtc)
CUDNN      := $(and $(CUDNN_ROOT),$(CUDNN_FRONTEND),$(NVRTC_ROOT))
# NVRTC opens libnvrtc-builtins by name. The loader finds it in the system's folders, but not in site-packages, so
# the program links to it although it calls none of its functions.
BUILTINS   := $(call library,$(NVRTC_ROOT),nvrtc-builtins)
CUDA_LIBS := $(or $(call library,$(CUBLAS_ROOT),cublasLt),-lcublasLt) \
             $(or $(call library,$(CUDA_ROOT),cudart),-lcudart) \
             $(if $(CUDNN),$(call library,$(CUDNN_ROOT),cudnn) $(call library,$(NVRTC_ROOT),nvrtc) \
               $(BUILTINS:%=-Wl,--push-state,--no-as-needed % -Wl,--pop-state)) \
             $(if $(NCCL_ROOT),$(call library,$(NCCL_ROOT),nccl))
# NVTX, for ranges in profilers; headers only.
NVTX_ROOT := $(firstword $(foreach root,$(ROOTS),$(and $(call header,$(root),nvtx3/nvToolsExt.h),$(root))))
# For the files that call CUDA and its libraries.
CUDAFLAGS := $(call includes,$(CUDA_ROOT)/include $(filter-out $(CUDA_ROOT)/include $(BUNDLED),\
               $(CUBLAS_ROOT)/include $(if $(CUDNN),$(CUDNN_ROOT)/include $(CUDNN_FRONTEND) $(NVRTC_ROOT)/include) \
               $(NVTX_ROOT:%=%/include) $(NCCL_ROOT:%=%/include)))
$(info CUDA in $(CUDA_ROOT) for sm_$(subst $() ,$(comma) sm_,$(ARCHS)), cuBLASLt in $(CUBLAS_ROOT), cuDNN \
  $(if $(CUDNN_ROOT),in $(CUDNN_ROOT),not found), its frontend $(if $(CUDNN_FRONTEND),in $(CUDNN_FRONTEND),not \
  found), NCCL $(if $(NCCL_ROOT),in $(NCCL_ROOT),not found)$(if $(CUDNN),,: no cuDNN attention))
endif

LIBRARIES := $(if $(filter cuda,$(DEVICE)),$(addprefix -L,$(call elsewhere,$(CUDA_ROOT)/lib64)) $(CUDA_LIBS) \
               $(call rpaths,$(dir $(filter /%,$(CUDA_LIBS)))),-ldnnl) \
             $(MPI_LIBS) $(BUNDLED:%/include=-L%/lib) -lpcre2-8 -lz -lzstd -ldl
# Version 2 of Catch2 is headers only; version 3 has a library.
CATCH2    := $(shell $(CXX) -std=c++20 $(BUNDLED:%=-isystem %) -include catch2/catch_test_macros.hpp -E -x c++ \
               /dev/null >/dev/null 2>&1 && echo -lCatch2)

# ---- what the compiler can do


# Instruction set of this processor, or MARCH=x86-64-v3 and similar for others. At start the program reports which of
# these instructions the processor lacks. On aarch64 -march=native does not tune for the processor; -mcpu=native does
# both.
MARCH     ?= native
MACHINE   := $(shell $(CXX) -dumpmachine)
ISA       := $(if $(and $(filter native,$(MARCH)),$(filter aarch64%,$(MACHINE))),-mcpu=native,-march=$(MARCH))
BUILD_ISA := $(shell echo | $(CXX) $(ISA) -dM -E -x c++ - 2>/dev/null | \
               sed -nE -e 's/^\#define __(AVX2|FMA|AVX512[A-Z0-9]*|F16C|BMI2)__ 1$$/-DBUILT_WITH_\1/p' \
                 -e 's/^\#define __ARM_FEATURE_([A-Z0-9_]+) 1$$/-DBUILT_WITH_\1/p')
# Compilers run under ccache if it is installed. The namespace keeps objects for this processor (-march=native) apart
# from those for others that share the cache.
CCACHE    ?= $(notdir $(shell command -v ccache 2>/dev/null))
ifneq ($(CCACHE),)
export CCACHE_NAMESPACE := train_gpt2-$(firstword $(shell echo | $(CXX) $(ISA) -dM -E -x c++ - 2>/dev/null | cksum))
endif
# $(call accepted,FLAG): FLAG, or nothing if the compiler rejects it or warns of it; Clang has no --param of GCC.
accepted   = $(shell $(CXX) -Werror $(1) -fsyntax-only -x c++ /dev/null 2>/dev/null && echo $(1))
# g++ 12 unrolls a loop over a pack of 16 before it could vectorise it (LayerNorm forward 0.34 ms instead of 0.18,
# 1024 x 768 fp32, one core).
PEELING   := $(call accepted,--param=max-completely-peel-times=15)
# A compiler that does not collect garbage in its memory takes a tenth less time for a long file, and up to 1.6 GB.
KEEP      := $(call accepted,--param=ggc-min-heapsize=4000000)
# With -O1, g++ fuses multiplications and additions as with -O3 only if this is set; Clang always does.
FUSED     := $(call accepted,-fexpensive-optimizations)

# The commit, for --version; empty if git does not track these sources.
COMMIT := $(shell git ls-files --error-unmatch Makefile >/dev/null 2>&1 && git rev-parse --short=12 HEAD 2>/dev/null \
            && { git status --porcelain -- Makefile config.mk train_gpt2.cu kernels llmc | grep -q . && echo -dirty; })
COMMIT := $(subst $() ,,$(COMMIT))
