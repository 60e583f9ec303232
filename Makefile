# make [DEVICE=cuda|cpu|fibers] [SANITIZE=address,undefined|thread] [all|tools|tests|test|clean]
#
#   cuda    kernels by nvcc, for sm_80 and sm_90a, with compute_80 PTX beside them for what comes later
#   cpu     the same kernels by the host compiler: one lane a row, vectorised over the pack, blocks over threads
#   fibers  the same kernels at the GPU's geometry on the host executor: slow, for tests of what a GPU would run
#
# SANITIZE builds with the compiler's checks, into build/<device>-<checks> and build/host-<checks>. `DEVICE=fibers
# SANITIZE=thread` looks for races between the threads of kernels: only they are instrumented, and
# kernels/simt/races/simt_race.cpp stands in for the compiler's run-time library, which knows no CUDA.
#
# Without DEVICE: cuda where nvcc and a GPU are found, else cpu. Host code is the same for every device, so its objects
# are shared: build/host; so two builds at once must not share it (SUFFIX=-mine makes folders of their own). Kernels'
# objects and programs go to build/<device>; ./train_gpt2, dev/tokenize, dev/generate and dev/export_llmc are links to
# the programs built last. What is compiled otherwise, as this file or a flag has changed, is built anew.

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

# Where compiler and linker look by themselves. A flag must not name it: with -isystem /usr/include before the headers
# of C++, g++ finds no stdlib.h.
SYSTEM    := $(foreach folder,/usr/include /usr/local/include /lib /lib64 /usr/lib /usr/lib64,\
               $(folder) $(folder)/$(MULTIARCH))
elsewhere  = $(filter-out $(SYSTEM),$(abspath $(1)))
includes   = $(addprefix -isystem ,$(call elsewhere,$(1)))
rpaths     = $(addprefix -Wl$(comma)-rpath$(comma),$(sort $(call elsewhere,$(1))))

# MPI: what mpicxx or pkg-config says, else in build/deps; MPI_ROOT= names another folder. Without it the program runs
# one process.
MPI_SAYS   = $(shell mpicxx --showme:$(1) 2>/dev/null || mpicxx -$(1)-info 2>/dev/null || \
               pkg-config --$(2) ompi-c 2>/dev/null || pkg-config --$(2) mpich 2>/dev/null)
MPI_ROOT  ?= $(if $(call MPI_SAYS,link,libs),,$(wildcard $(CURDIR)/build/deps/openmpi))
MPI_HEADERS := $(if $(MPI_ROOT),$(MPI_ROOT)/include,$(patsubst -I%,%,$(filter -I%,$(call MPI_SAYS,compile,cflags))))
MPI_LIBS  := $(if $(MPI_ROOT),$(call library,$(MPI_ROOT),mpi) $(call rpaths,$(MPI_ROOT)/lib),\
               $(filter-out -lmpi_cxx -lmpicxx,$(filter -L% -l% -Wl$(comma)-rpath% -Wl$(comma)/%,\
               $(call MPI_SAYS,link,libs))))

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
# NVRTC opens its second half by name, which the loader finds in folders of the system, but not beside it in python3's
# packages: the program brings it along, though it calls nothing of it.
BUILTINS   := $(call library,$(NVRTC_ROOT),nvrtc-builtins)
CUDA_LIBS := $(or $(call library,$(CUBLAS_ROOT),cublasLt),-lcublasLt) \
             $(or $(call library,$(CUDA_ROOT),cudart),-lcudart) \
             $(if $(CUDNN),$(call library,$(CUDNN_ROOT),cudnn) $(call library,$(NVRTC_ROOT),nvrtc) \
               $(BUILTINS:%=-Wl,--push-state,--no-as-needed % -Wl,--pop-state))
# Headers only, of ranges that profilers show.
NVTX_ROOT := $(firstword $(foreach root,$(ROOTS),$(and $(call header,$(root),nvtx3/nvToolsExt.h),$(root))))
$(info CUDA in $(CUDA_ROOT), cuBLASLt in $(CUBLAS_ROOT), cuDNN $(if $(CUDNN_ROOT),in $(CUDNN_ROOT),not found), its \
  frontend $(if $(CUDNN_FRONTEND),in $(CUDNN_FRONTEND),not found), NCCL $(if $(NCCL_ROOT),in $(NCCL_ROOT),not \
  found)$(if $(CUDNN),,: no cuDNN attention))
endif

# MARCH=x86-64-v3 and the like build for other processors than this one; a processor that lacks what the build uses is
# told so at start.
MARCH     ?= native
OPTIMISE  ?= -O3
EXTRA     ?=

SANITIZE  ?=
ifneq ($(filter-out thread address undefined address+undefined,$(subst $(comma),+,$(SANITIZE)))$(and \
        $(SANITIZE),$(filter cuda,$(DEVICE))),)
  $(error SANITIZE is "$(SANITIZE)" with DEVICE=$(DEVICE); expected thread, address, undefined or address,undefined, \
    with DEVICE=cpu or fibers)
endif
RACES     := $(and $(filter fibers,$(DEVICE)),$(filter thread,$(SANITIZE)))
SUFFIX    := $(SANITIZE:%=-$(subst $(comma),-,$(SANITIZE)))
BUILD     := build/$(DEVICE)$(SUFFIX)
HOSTBUILD := build/host$(if $(RACES),,$(SUFFIX))
PLAINBUILD := build/host$(if $(SANITIZE),,$(SUFFIX))

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
PLAINFLAGS := $(CXXFLAGS)

# What the checks of memory accesses see must be what the source says, line by line: no vector code, whose masked
# accesses they miss. What a use of a null pointer or of a wrong type does, AddressSanitizer sees itself.
CHECKED   := -O1 -g1 -fno-omit-frame-pointer -fno-tree-vectorize "-fdebug-prefix-map=$(CURDIR)=." \
             -fsanitize=$(SANITIZE) -fno-sanitize-recover=all -Wno-tsan -Wno-maybe-uninitialized \
             $(if $(findstring address,$(SANITIZE)),-fno-sanitize=null$(comma)vptr$(comma)object-size)
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
  # Of the files that call CUDA and its libraries.
  CUDAFLAGS := $(call includes,$(CUDA_ROOT)/include $(filter-out $(CUDA_ROOT)/include $(BUNDLED),\
                 $(CUBLAS_ROOT)/include $(if $(CUDNN),$(CUDNN_ROOT)/include $(CUDNN_FRONTEND) $(NVRTC_ROOT)/include) \
                 $(NVTX_ROOT:%=%/include) $(NCCL_ROOT:%=%/include)))
  # -lineinfo: compute-sanitizer and profilers name the line; the code is the same.
  NVCCFLAGS := -std=c++20 -O3 -lineinfo --expt-relaxed-constexpr -DTRAIN_GPT2_CUDA -I. -Xcompiler -Wall -Xptxas -v \
               --threads 0 \
               -gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_90a,code=sm_90a
  CUDA_LIBS += $(if $(NCCL_ROOT),$(call library,$(NCCL_ROOT),nccl))
  LDLIBS    += $(addprefix -L,$(call elsewhere,$(CUDA_ROOT)/lib64)) $(CUDA_LIBS) \
               $(call rpaths,$(dir $(filter /%,$(CUDA_LIBS))))
else
  LDLIBS    += -ldnnl
endif
LDLIBS    += $(MPI_LIBS) $(BUNDLED:%/include=-L%/lib) -lpcre2-8 -lz -lzstd -ldl

# Which files a build compiles follows from the ends of their names:
#
#   NAME_cuda, NAME_host              a GPU runs the kernels, or the host does (cpu, fibers)
#   NAME_gpu, NAME_cpu                kernels have the geometry of a GPU (cuda, fibers), or of a CPU
#   NAME_<library>, ..._absent        with or without cublaslt, onednn, cudnn, nccl, mpi
#   races/NAME                        only where races between the threads of kernels are looked for
#   NAME_stand_in_test                only by test/stand_in/Makefile
HAS       := $(if $(filter cuda,$(DEVICE)),cuda cublaslt,host onednn) $(if $(filter cpu,$(DEVICE)),cpu,gpu) \
             $(if $(CUDNN),cudnn) $(if $(NCCL_ROOT),nccl) $(if $(MPI_LIBS),mpi)
ENDS      := cuda host gpu cpu cublaslt onednn cudnn nccl mpi stand_in
HAS_NOT   := $(filter-out $(HAS),$(ENDS))
with_end   = $(foreach end,$(1),%_$(end).cpp %_$(end).cu %_$(end)_test.cpp %_$(end)_test.cu)
LEFT_OUT  := $(call with_end,$(HAS_NOT) $(HAS:%=%_absent))
# $(call sources,FOLDERS,SUFFIX): those of this build, in the folders and below.
sources    = $(filter-out $(LEFT_OUT),$(sort $(shell find $(1) -name '*.$(2)' $(if $(RACES),,-not -path '*/races/*'))))
# The files of every folder below these are compiled as one, which reads once what they include: llmc takes 93 s of a
# processor instead of 207. UNITE= compiles each alone, for those who change one again and again. UNITE="llmc test" is
# for tests of which nothing is built again. What has flags of its own or is not for every device stays apart, and where
# each file gives a name its own sense.
UNITE     ?= llmc
APART     := %/processor_check.cpp %/commit.cpp test/support/% test/operations/% test/main% \
             $(call with_end,$(ENDS) $(ENDS:%=%_absent))
is_united  = $(filter-out $(APART),$(filter $(UNITE:%=%/%),$(1)))
united     = $(dir $(1))united$(if $(filter %_ranks_test.cpp,$(1)),_ranks)$(if $(filter %_test.cpp \
               %_test.cu,$(1)),_test)$(suffix $(1))
# $(call objects,FOLDER,SOURCES)
objects    = $(sort $(foreach file,$(2),$(1)/$(if $(call is_united,$(file)),$(call united,$(file)),$(file)).o))

KERNEL_CU := $(call sources,kernels,cu)
EXECUTOR  := $(if $(filter cuda,$(DEVICE)),,$(call sources,kernels/simt,cpp))
HOST_SRC  := $(filter-out kernels/simt/%,$(call sources,kernels llmc,cpp))
LIBRARY   := $(call objects,$(HOSTBUILD),$(HOST_SRC)) $(call objects,$(BUILD),$(KERNEL_CU) $(EXECUTOR))
TOOLS     := $(patsubst dev/%.cpp,$(BUILD)/%,$(wildcard dev/*.cpp))
# The sanitizers judge the product, not what its results are compared with, nor, but for races between ranks, the cases:
# those objects are of the plain build.
EXPECTED  := $(addprefix test/support/,reference_model.cpp communicator_suite.cpp collective_results.cpp)
OPERATIONS := $(call objects,$(PLAINBUILD),$(wildcard test/operations/*.cpp))
SUPPORT   := $(call objects,$(HOSTBUILD),$(filter-out $(EXPECTED),$(wildcard test/support/*.cpp))) \
             $(call objects,$(PLAINBUILD),$(EXPECTED)) build/test/main.cpp.o
# Files and folders of test cases; fewer may be named, test/kernels among them. test/*.cu are for the executor.
# NAME_ranks_test.cpp runs ranks as threads, and so is in rank_tests, too, a small program for SANITIZE=thread.
TESTS     ?= test
TEST_CPP  := $(filter %_test.cpp,$(call sources,$(TESTS),cpp))
TEST_CU   := $(if $(filter cuda,$(DEVICE)),,$(call sources,$(TESTS),cu))
RANK_CPP  := $(filter %_ranks_test.cpp,$(TEST_CPP))
CASEBUILD := $(if $(filter thread,$(SANITIZE)),$(HOSTBUILD),$(PLAINBUILD))
CASES     := $(call objects,$(CASEBUILD),$(TEST_CPP)) $(call objects,$(BUILD),$(TEST_CU))
RANK_OBJ  := $(call objects,$(CASEBUILD),$(RANK_CPP) test/main_ranks.cpp) $(SUPPORT)

all: $(BUILD)/train_gpt2 tools
	@ln -sfn $(BUILD)/train_gpt2 train_gpt2
	@ln -sfn ../$(BUILD)/tokenize dev/tokenize
	@ln -sfn ../$(BUILD)/export_llmc dev/export_llmc
	@ln -sfn ../$(BUILD)/generate dev/generate
tools: $(TOOLS)
tests: $(BUILD)/tests
test: all tests
	$(BUILD)/tests

# Headers do for version 2 of Catch2, 3 has a library.
CATCH2    := $(shell $(CXX) -std=c++20 $(BUNDLED:%=-isystem %) -include catch2/catch_test_macros.hpp -E -x c++ \
               /dev/null >/dev/null 2>&1 && echo -lCatch2)
link       = $(CXX) -o $@ $(filter %.o,$^) $(LDLIBS) $(EXTRA)
$(BUILD)/train_gpt2: $(HOSTBUILD)/train_gpt2.cu.o $(LIBRARY) $(BUILD)/library
	$(link)
$(TOOLS): $(BUILD)/%: $(HOSTBUILD)/dev/%.cpp.o $(LIBRARY) $(BUILD)/library
	$(link)
$(BUILD)/bench: $(OPERATIONS)  # measures what the tests check
# The program's objects come first: of an inline function that a test uses, too, the linker takes what they hold.
$(BUILD)/tests: $(LIBRARY) $(CASES) $(OPERATIONS) $(SUPPORT) $(BUILD)/library $(BUILD)/cases
	$(link) $(CATCH2)
$(BUILD)/rank_tests: $(LIBRARY) $(RANK_OBJ) $(BUILD)/library $(BUILD)/cases
	$(link) $(CATCH2)

ifneq ($(PLAINBUILD),$(HOSTBUILD))
$(PLAINBUILD)/%.cpp.o: private CXXFLAGS := $(PLAINFLAGS)
endif
# For test cases an optimiser would take more time than it saves: -Og takes three quarters of what -O1 does. What they
# compare with, in support and operations, runs long enough. Under the sanitizers, which double what an optimiser has to
# read and see all that the source says with -O0, that goes for host code, too.
# FAST_COMPILE: without a handler of exceptions in every assertion; the test case has one.
QUICK     := $(if $(filter -O2 -O3,$(OPTIMISE)),-O1)
$(CASES): private CXXFLAGS += $(QUICK:%=-Og) -DCATCH_CONFIG_FAST_COMPILE
$(if $(SANITIZE),$(filter-out $(PLAINBUILD)/%,$(CASES))): private CXXFLAGS += -O0 -fno-sanitize=undefined
ifneq ($(and $(SANITIZE),$(if $(RACES),,host)),)
$(HOSTBUILD)/llmc/%.o: private CXXFLAGS += -O0
endif

# Catch2 itself takes longer to compile than any test: once, for all builds, and never checked by a sanitizer.
build/test/main.cpp.o: test/main.cpp Makefile
	@mkdir -p $(@D)
	$(CXX) -std=c++20 -O0 -Wall -Wextra -I. $(BUNDLED:%=-isystem %) -MMD -MP -c $< -o $@

# main() is host code; only its name says CUDA.
$(HOSTBUILD)/train_gpt2.cu.o: train_gpt2.cu Makefile $(HOSTBUILD)/flags
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) -MMD -MP -x c++ -c $< -o $@

# Nothing here is computed for every token, and options, reports and JSON are templates that an optimiser reads for long
# (options.cpp: 16 s with -O3, 11 s with -O1).
ifeq ($(if $(RACES),,$(SANITIZE)),)
$(HOSTBUILD)/llmc/run/%.o $(HOSTBUILD)/llmc/weights/config_json.cpp.o $(HOSTBUILD)/dev/%.o: \
  private CXXFLAGS += $(QUICK)
endif

# cuDNN's frontend is templates that only build plans, and the longest part of a build: 154 s with -O3, 90 s with -O1,
# 52 s without the JSON in which it could write plans down (user time, cores that others used too).
$(HOSTBUILD)/kernels/attention/attention_cudnn.cpp.o: private CXXFLAGS += -DCUDNN_FRONTEND_SKIP_JSON_LIB $(QUICK)

# Runs before anything else and must itself run on every processor.
BUILD_ISA := $(shell echo | $(CXX) -march=$(MARCH) -dM -E - 2>/dev/null | \
               sed -n 's/^\#define __\(AVX2\|FMA\|AVX512[A-Z0-9]*\|F16C\|BMI2\)__ 1$$/-DBUILT_WITH_\1/p')
$(HOSTBUILD)/llmc/base/processor_check.cpp.o: llmc/base/processor_check.cpp Makefile $(HOSTBUILD)/flags
	@mkdir -p $(@D)
	$(CXX) -std=c++20 -O1 -Wall -Wextra -I. $(BUILD_ISA) -MMD -MP -c $< -o $@

# $(eval $(call kept,FILE,TEXT)): FILE holds TEXT, and is written only where it does not; what depends on it is then
# made again.
define kept
ifneq '$$(strip $$(file <$(1)))' '$(strip $(2))'
$(1): ALWAYS
endif
$(1):
	@mkdir -p $$(@D)
	@echo '$(strip $(2))' >$$@
endef

# The commit, for --version; nothing where git does not know these sources. It goes into one object, which is made
# again when it changes.
COMMIT := $(shell git ls-files --error-unmatch Makefile >/dev/null 2>&1 && git rev-parse --short=12 HEAD 2>/dev/null \
            && { git status --porcelain -- Makefile train_gpt2.cu kernels llmc | grep -q . && echo -dirty; })
COMMIT := $(subst $() ,,$(COMMIT))
$(HOSTBUILD)/llmc/run/start/commit.cpp.o: private CXXFLAGS += $(COMMIT:%=-DTRAIN_GPT2_COMMIT='"%"')
$(HOSTBUILD)/llmc/run/start/commit.cpp.o: $(HOSTBUILD)/commit
$(eval $(call kept,$(HOSTBUILD)/commit,$(COMMIT)))

# The C++ classes of old MPI versions are not used and would need a library of their own.
$(HOSTBUILD)/llmc/comm/communicator_mpi.cpp.o: private CXXFLAGS += $(call includes,$(MPI_HEADERS)) -DOMPI_SKIP_MPICXX \
  -DMPICH_SKIP_MPICXX
ifeq ($(DEVICE),cuda)
$(foreach end,cuda cublaslt cudnn nccl,$(HOSTBUILD)/%_$(end).cpp.o $(HOSTBUILD)/%_$(end)_test.cpp.o): \
  private CXXFLAGS += $(CUDAFLAGS)
endif

# What programs are linked from: a library that is there or no longer there changes the objects, or only this.
$(eval $(call kept,$(BUILD)/library,$(LIBRARY) $(LDLIBS)))
$(eval $(call kept,$(BUILD)/cases,$(CASES) $(CATCH2)))
$(eval $(call kept,$(HOSTBUILD)/flags,$(CXX) $(CXXFLAGS)))
$(if $(filter-out $(HOSTBUILD),$(PLAINBUILD)),$(eval $(call kept,$(PLAINBUILD)/flags,$(CXX) $(PLAINFLAGS))))
$(eval $(call kept,$(BUILD)/flags,$(if $(filter cuda,$(DEVICE)),$(NVCC) $(NVCCFLAGS),$(CXX) $(CXXFLAGS) $(CUFLAGS) \
  $(KERNELDEF))))

# A long file: a compiler that does not look for memory to use again takes a tenth less time, and up to 1.6 GB.
define compile_host
@mkdir -p $(@D)
$(CXX) $(CXXFLAGS) $(if $(filter build/%,$<),--param ggc-min-heapsize=4000000) -MMD -MP -c $< -o $@
endef
define compile_executor
@mkdir -p $(@D)
$(CXX) $(CXXFLAGS) $(CUFLAGS) $(KERNELDEF) -MMD -MP -x c++ -c $< -o $@
endef

$(HOSTBUILD)/%.cpp.o: %.cpp Makefile $(HOSTBUILD)/flags
	$(compile_host)
$(HOSTBUILD)/%.cpp.o: $(HOSTBUILD)/%.cpp Makefile $(HOSTBUILD)/flags
	$(compile_host)

ifneq ($(PLAINBUILD),$(HOSTBUILD))
$(PLAINBUILD)/test/%.cpp.o: test/%.cpp Makefile $(PLAINBUILD)/flags
	$(compile_host)
$(PLAINBUILD)/test/%.cpp.o: $(PLAINBUILD)/test/%.cpp Makefile $(PLAINBUILD)/flags
	$(compile_host)
endif

$(BUILD)/kernels/simt/%.cpp.o: private CUFLAGS :=
$(BUILD)/kernels/simt/%.cpp.o: kernels/simt/%.cpp Makefile $(BUILD)/flags
	$(compile_executor)

ifeq ($(DEVICE),cuda)
$(BUILD)/kernels/%.cu.o: kernels/%.cu Makefile $(BUILD)/flags
	@mkdir -p $(@D)
	$(NVCC) $(NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@ > $(@:.o=.ptxas) 2>&1 || { cat $(@:.o=.ptxas) >&2; exit 1; }
else
$(BUILD)/%.cu.o: %.cu Makefile $(BUILD)/flags
	$(compile_executor)
$(BUILD)/%.cu.o: $(BUILD)/%.cu Makefile $(BUILD)/flags
	$(compile_executor)
endif

# $(call unite,FOLDER,SOURCES): the rules for the files that include those of a folder.
define unite_one
$(1)/$(2): ALWAYS
	@mkdir -p $$(@D)
	@printf '#include "%s"\n' $(3) | cmp -s - $$@ || printf '#include "%s"\n' $(3) >$$@
endef
unite      = $(foreach one,$(sort $(foreach file,$(call is_united,$(2)),$(call united,$(file)))),$(eval $(call \
               unite_one,$(1),$(one),$(foreach file,$(call is_united,$(2)),$(if $(filter $(one),$(call \
               united,$(file))),$(file))))))
$(call unite,$(HOSTBUILD),$(HOST_SRC))
$(call unite,$(CASEBUILD),$(TEST_CPP))
$(call unite,$(BUILD),$(TEST_CU))

clean:
	rm -rf $(filter-out build/deps,$(wildcard build/*)) train_gpt2 dev/tokenize dev/export_llmc dev/generate

.PHONY: all tools tests test clean ALWAYS
-include $(shell find build -name '*.d' 2>/dev/null)
