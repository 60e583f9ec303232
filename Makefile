# make -j"$(nproc)" [DEVICE=cuda|cpu|fibers] [TARGET...]
#
# Targets:
#   all                    train_gpt2, dev/tokenize, dev/generate and dev/export_llmc (default)
#   tools                  every program of dev/, benchmarks included
#   tests                  the test program, build/<device>/tests; `make test` also runs it
#   compile_commands.json  for clangd and clang-tidy
#   tidy                   clang-tidy over TIDY="FILES..."; default: llmc/base without the JSON files, about 30 s
#   install                copies the programs of `all`, as built last, to DESTDIR/PREFIX/bin: train_gpt2,
#                          train_gpt2-tokenize, train_gpt2-generate, train_gpt2-export_llmc; `uninstall` removes them
#   clean                  removes what make built; keeps build/deps, build/python and build/aarch64/root
#
# Variables:
#   DEVICE=cuda            kernels compiled by nvcc; the default if nvcc and a GPU are found
#   DEVICE=cpu             the same kernels compiled for the host: blocks of one thread, distributed over CPU threads
#   DEVICE=fibers          the same kernels with the GPU's geometry on a CPU: slow, for tests
#   CUDA_ARCHS="80 90a"    GPUs to compile for; default: those of this machine; all: 80 and 90a, for packages
#   MARCH=x86-64-v3        instruction set of the CPU; default: that of this machine
#   OPTIMISE=-O3           EXTRA=FLAGS  for every compiler of host code
#   UNITE=                 no unity build: every file separately, so that a change of one file recompiles only that
#                          file; the first build after a change of UNITE compiles nearly everything again
#   SANITIZE=CHECKS        thread, address, undefined or address,undefined; DEVICE=cpu or fibers
#   TESTS=FILES            test files or folders to compile; default: test
#   SUFFIX=-mine           separate build folders, for two concurrent builds
#   PREFIX=/usr/local      where `install` copies to; DESTDIR=FOLDER before it, for packages
#   CXX=clang++            compiler of host code; default: g++
#   CCACHE=                without ccache, which is used if it is installed: a file compiled before takes no time
#   NVCC= CUDA_HOME= CUBLAS_ROOT= CUDNN_ROOT= NCCL_ROOT= CUDNN_FRONTEND= MPI_ROOT=  locations (config.mk)
#
# Objects of host code are the same for every device, and shared: build/host. Objects of kernels and programs are in
# build/<device>; ./train_gpt2, dev/tokenize, dev/generate and dev/export_llmc are links to the programs built last. A
# changed flag recompiles the objects that use it.

# Variables on the command line must be listed above or be set by make_flags.sh or pack.sh; `make help` accepts all.
ifneq ($(filter help,$(MAKECMDGOALS)),)
override DEVICE := cpu
override SANITIZE :=
else
KNOWN     := $(sort $(shell sed '/^$$/q' Makefile | grep -oE '\<[A-Z_]+=' | tr -d =))
UNKNOWN   := $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))
UNKNOWN   := $(filter-out $(KNOWN) NVRTC_ROOT BUILTINS BUNDLED PYTHON MAKEFLAGS SHELL,$(UNKNOWN))
$(if $(UNKNOWN),$(error $(UNKNOWN): unknown on make's command line; expected $(KNOWN); see make help))
endif

include config.mk

# ---- flags

OPTIMISE  ?= -O3
EXTRA     ?=
SANITIZE  ?=
ifneq ($(filter-out thread address undefined address+undefined,$(subst $(comma),+,$(SANITIZE)))$(and \
        $(SANITIZE),$(filter cuda,$(DEVICE))),)
  $(error SANITIZE is "$(SANITIZE)" with DEVICE=$(DEVICE); expected thread, address, undefined or address,undefined, \
    with DEVICE=cpu or fibers)
endif
# DEVICE=fibers SANITIZE=thread looks for races between the threads of kernels: only kernels are instrumented, and
# kernels/simt/races/simt_race.cpp replaces the compiler's run-time library, which does not know CUDA.
RACES     := $(and $(filter fibers,$(DEVICE)),$(filter thread,$(SANITIZE)))
SUFFIX    := $(SANITIZE:%=-$(subst $(comma),-,$(SANITIZE)))
BUILD     := build/$(DEVICE)$(SUFFIX)
HOSTBUILD := build/host$(if $(RACES),,$(SUFFIX))
PLAINBUILD := build/host$(if $(SANITIZE),,$(SUFFIX))

# sqrtf and selects vectorise only without errno and traps (AdamW 14.6 ms instead of 64 for 32 M elements, one core);
# results stay the same. CXXOPTS_NO_REGEX: every program separates flags and values itself, and <regex> takes seconds to
# compile.
CXXFLAGS  := -std=c++20 $(OPTIMISE) -fno-math-errno -fno-trapping-math $(PEELING) $(ISA) -fopenmp -DCXXOPTS_NO_REGEX \
             -Wall -Wextra -Wno-missing-field-initializers -I. $(BUNDLED:%=-isystem %) $(EXTRA)
KERNELDEF := $(if $(filter fibers,$(DEVICE)),-DTRAIN_GPT2_FIBERS)
LDLIBS    := -fopenmp
PLAINFLAGS := $(CXXFLAGS)

# No vectorization under sanitizers: they miss masked vector accesses, and reports should match source lines.
# AddressSanitizer already detects the use of null pointers and of objects of a wrong type.
CHECKED   := -O1 -g1 -fno-omit-frame-pointer -fno-tree-vectorize "-fdebug-prefix-map=$(CURDIR)=." \
             -fsanitize=$(SANITIZE) -fno-sanitize-recover=all -Wno-tsan -Wno-maybe-uninitialized \
             $(if $(findstring address,$(SANITIZE)),-fno-sanitize=null$(comma)vptr$(comma)object-size)
ifneq ($(RACES),)
  KERNELDEF += -DTRAIN_GPT2_RACES
  CUFLAGS   := $(CHECKED)
else ifneq ($(SANITIZE),)
  CXXFLAGS  += $(CHECKED)
  LDLIBS    += -fsanitize=$(SANITIZE)
  # ThreadSanitizer does not know libgomp's barriers: loops run on one thread, and omp_* answer as they do outside a
  # parallel region.
  ifeq ($(SANITIZE),thread)
    CXXFLAGS := $(filter-out -fopenmp,$(CXXFLAGS)) -fopenmp-simd -Wno-unknown-pragmas
    LDLIBS   := $(filter-out -fopenmp,$(LDLIBS)) -lgomp
  endif
endif
LDLIBS    += $(LIBRARIES)
# -lineinfo: compute-sanitizer and profilers name the line; the code is the same.
NVCCFLAGS := -std=c++20 -O3 -lineinfo --expt-relaxed-constexpr -DTRAIN_GPT2_CUDA -I. -Xcompiler -Wall -Xptxas -v \
             --threads 0 $(GENCODE)

# ---- files of this build

# The end of a file's name says which builds compile it:
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
# Unity build: for each folder below those in UNITE all files are compiled as one translation unit, so that headers are
# compiled once per folder: llmc takes 93 s of CPU time instead of 207, measured before its headers stopped including
# the JSON library. UNITE="kernels llmc test" is for tests that are built once. Files of host code that have flags of
# their own, or are not for every device, or define the same name differently are compiled separately; so is a kernel,
# except in the CPU build, where it takes as long as its headers, and in tests: all take nvcc 65 s of processor time
# instead of 92 with the four of a GPU apart, but many cores have nothing to do meanwhile.
UNITE     ?= kernels llmc
KERNELS_AS_ONE := $(if $(SANITIZE),,$(filter test,$(UNITE)))
APART     := %/processor_check.cpp test/support/% test/main% \
             kernels/simt/races/% $(if $(or $(filter cpu,$(DEVICE)),$(KERNELS_AS_ONE)),,kernels/%.cu) \
             $(filter-out %.cu %_mpi_test.cpp,$(call with_end,$(ENDS) $(ENDS:%=%_absent)))
# GROUP:FOLDER: these folders are compiled with the files of another one, because most of the time of each goes to
# headers and their templates (base, comm, data, text and weights: 11 s of CPU time instead of 17). INNER_LOOPS: files
# whose loops take much of the time of a start, a checkpoint or a tokenizer: the only ones that need an optimiser.
TOGETHER  := $(patsubst %,llmc/base/:llmc/%/,data text weights) llmc/model/:llmc/comm/ \
             $(patsubst %,llmc/run/:llmc/run/%/,checkpoint control evaluation log loop options start) \
             $(patsubst %,kernels/:kernels/%/,attention device matmul tuning) \
             $(patsubst %,test/kernels/:test/kernels/%/,attention device matmul simt tuning) \
             $(patsubst %,test/llmc/run/:test/llmc/run/%/,checkpoint control evaluation log options start) \
             $(patsubst %,test/llmc/base/:test/llmc/%/,comm data text weights) \
             $(patsubst %,test/:test/%/,fuzz fuzz/targets program)
INNER_LOOPS := llmc/base/fingerprint.cpp llmc/weights/parameters.cpp \
               $(patsubst %,llmc/%.cpp,data/batch data/shard text/bpe_encoder text/bpe_split text/bpe_training)
group      = $(if $(filter $(INNER_LOOPS),$(1)),llmc/inner_loops/,$(or $(patsubst %:$(dir $(1)),%,$(filter \
               %:$(dir $(1)),$(TOGETHER))),$(dir $(1))))
EXECUTOR_ONE := $(if $(filter kernels,$(UNITE)),kernels/simt/%.cpp)
is_united  = $(sort $(filter-out $(APART),$(filter $(UNITE:%=%/%),$(1))) \
               $(filter-out kernels/simt/races/%,$(filter $(EXECUTOR_ONE),$(1))))
united     = $(call group,$(1))united$(if $(filter $(RANKS_APART),$(1)),_ranks)$(if $(filter %_test.cpp \
               %_test.cu,$(1)),_test)$(suffix $(1))
# Only the program rank_tests has the files of ranks as threads without the others.
RANKS_APART := $(if $(RACES),,$(if $(filter thread,$(SANITIZE)),%_ranks_test.cpp))
# $(call objects,FOLDER,SOURCES)
objects    = $(sort $(foreach file,$(2),$(1)/$(if $(call is_united,$(file)),$(call united,$(file)),$(file)).o))

KERNEL_CU := $(call sources,kernels,cu)
EXECUTOR  := $(if $(filter cuda,$(DEVICE)),,$(call sources,kernels/simt,cpp))
HOST_SRC  := $(filter-out kernels/simt/%,$(call sources,kernels llmc,cpp))
LIBRARY   := $(call objects,$(HOSTBUILD),$(HOST_SRC)) $(call objects,$(BUILD),$(KERNEL_CU) $(EXECUTOR))
TOOL_CPP  := $(wildcard dev/*.cpp dev/bench/*.cpp)
TOOLS     := $(basename $(notdir $(TOOL_CPP)))
# The sanitizers check the program. The reference that its results are compared with, and the test cases (except those
# for races between ranks), are compiled without sanitizers: their objects are those of the plain build.
EXPECTED  := $(addprefix test/support/,reference_model.cpp communicator_suite.cpp collective_results.cpp)
OPERATION_CPP := $(call sources,test/operations,cpp)
OPERATIONS := $(call objects,$(PLAINBUILD),$(OPERATION_CPP))
SUPPORT   := $(call objects,$(HOSTBUILD),$(filter-out $(EXPECTED),$(wildcard test/support/*.cpp))) \
             $(call objects,$(PLAINBUILD),$(EXPECTED)) build/test/$(MACHINE)/main.cpp.o
# Test cases. test/*.cu are for the executor. NAME_ranks_test.cpp runs ranks as threads; rank_tests, a small program for
# SANITIZE=thread, has these files alone.
TESTS     ?= test
TEST_CPP  := $(filter %_test.cpp,$(call sources,$(TESTS),cpp))
TEST_CPP  += $(if $(filter test/fuzz/%,$(TEST_CPP)),test/fuzz/contract.cpp $(wildcard test/fuzz/targets/*.cpp))
TEST_CU   := $(if $(filter cuda,$(DEVICE)),,$(call sources,$(TESTS),cu))
RANK_CPP  := $(filter %_ranks_test.cpp,$(TEST_CPP))
CASEBUILD := $(if $(filter thread,$(SANITIZE)),$(HOSTBUILD),$(PLAINBUILD))
CASES     := $(call objects,$(CASEBUILD),$(TEST_CPP)) $(call objects,$(BUILD),$(TEST_CU))
RANK_OBJ  := $(call objects,$(CASEBUILD),$(RANK_CPP) test/main_ranks.cpp) $(SUPPORT)

# ---- programs

# Training needs these; `make tools` also builds the other programs of dev/.
LINKED    := dev/tokenize dev/generate dev/export_llmc
all: train_gpt2 $(LINKED)
train_gpt2: $(BUILD)/train_gpt2
	@ln -sfn $< $@
$(LINKED): dev/%: $(BUILD)/%
	@ln -sfn ../$< $@
tools: $(LINKED) $(TOOLS:%=$(BUILD)/%)
tests: $(BUILD)/tests
test: all tools tests
	$(BUILD)/tests

link       = $(CXX) -o $@ $(filter %.o,$^) $(LDLIBS) $(EXTRA)
$(BUILD)/train_gpt2: $(HOSTBUILD)/train_gpt2.cu.o $(LIBRARY) $(BUILD)/library
	$(link)
$(foreach file,$(TOOL_CPP),$(eval $(BUILD)/$(basename $(notdir $(file))): $(HOSTBUILD)/$(file).o $(LIBRARY) \
  $(BUILD)/library; $$(link)))
$(BUILD)/bench: $(OPERATIONS)  # measures the operations that the tests check
# The program's objects come first: the linker takes from them the inline functions that tests use, too.
$(BUILD)/tests: $(LIBRARY) $(CASES) $(OPERATIONS) $(SUPPORT) $(BUILD)/library $(BUILD)/cases
	$(link) $(CATCH2)
$(BUILD)/rank_tests: $(LIBRARY) $(RANK_OBJ) $(BUILD)/library $(BUILD)/cases
	$(link) $(CATCH2)

# Builds nothing, so that root, for whom DEVICE may have another default, installs what a user built and tried.
PREFIX    := /usr/local
INSTALLED := $(DESTDIR)$(PREFIX)/bin
install:
	@for program in train_gpt2 $(LINKED); do [ -e $$program ] || { \
	  echo "error: ./$$program is missing; run make first" >&2; exit 1; }; done
	install -D train_gpt2 '$(INSTALLED)/train_gpt2'
	$(foreach name,$(LINKED:dev/%=%),install dev/$(name) '$(INSTALLED)/train_gpt2-$(name)' &&) true
uninstall:
	rm -f '$(INSTALLED)/train_gpt2' $(LINKED:dev/%='$(INSTALLED)/train_gpt2-%')

# ---- objects

define compile_host
@mkdir -p $(@D)
$(CCACHE) $(CXX) $(CXXFLAGS) $(KEEP) -MMD -MP -c $< -o $@
endef
define compile_executor
@mkdir -p $(@D)
$(CCACHE) $(CXX) $(CXXFLAGS) $(CUFLAGS) $(KERNELDEF) $(KEEP) -MMD -MP -x c++ -c $< -o $@
endef

MAKE_FILES := Makefile config.mk
# $(eval $(call rules,FOLDER,SOURCE,COMMAND)): objects in FOLDER of a source, a pattern, and of a united file.
define rules
$(1)/$(2).o: $(2) $(MAKE_FILES) $(1)/flags
	$$($(3))
$(1)/$(2).o: $(1)/$(2) $(MAKE_FILES) $(1)/flags
	$$($(3))
endef
$(eval $(call rules,$(HOSTBUILD),%.cpp,compile_host))
ifneq ($(PLAINBUILD),$(HOSTBUILD))
$(PLAINBUILD)/%.cpp.o: private CXXFLAGS := $(PLAINFLAGS)
$(eval $(call rules,$(PLAINBUILD),test/%.cpp,compile_host))
endif
ifeq ($(DEVICE),cuda)
define compile_cuda
@mkdir -p $(@D)
$(CCACHE) $(NVCC) $(NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@ > $(@:.o=.ptxas) 2>&1 || \
  { cat $(@:.o=.ptxas) >&2; exit 1; }
endef
$(eval $(call rules,$(BUILD),kernels/%.cu,compile_cuda))
else
$(eval $(call rules,$(BUILD),%.cu,compile_executor))
endif
$(BUILD)/kernels/simt/%.cpp.o: private CUFLAGS :=
$(eval $(call rules,$(BUILD),kernels/simt/%.cpp,compile_executor))
# main() is host code; only its name says CUDA.
$(HOSTBUILD)/train_gpt2.cu.o: train_gpt2.cu $(MAKE_FILES) $(HOSTBUILD)/flags
	@mkdir -p $(@D)
	$(CCACHE) $(CXX) $(CXXFLAGS) $(KEEP) -MMD -MP -x c++ -c $< -o $@
# Runs before anything else and must itself run on every processor.
$(HOSTBUILD)/llmc/base/processor_check.cpp.o: llmc/base/processor_check.cpp $(MAKE_FILES) $(HOSTBUILD)/flags
	@mkdir -p $(@D)
	$(CCACHE) $(CXX) -std=c++20 -O1 -Wall -Wextra -I. $(BUILD_ISA) -MMD -MP -c $< -o $@
# Catch2 itself takes longer to compile than any test: once, for all builds, and never checked by a sanitizer.
build/test/$(MACHINE)/main.cpp.o: test/main.cpp $(MAKE_FILES)
	@mkdir -p $(@D)
	$(CCACHE) $(CXX) -std=c++20 -O0 -Wall -Wextra -I. $(BUNDLED:%=-isystem %) -MMD -MP -c $< -o $@

# ---- objects with flags of their own

# Optimizing test cases takes more time than it saves: -Og compiles in three quarters of the time of -O1. The reference
# code, in test/support and test/operations, runs long enough to need optimization; for the formulas of operations -O1
# is enough. Sanitizers double the code to be optimized, and with -O0 they see every access of the source, so sanitized
# host code is not optimized either. FAST_COMPILE: without an exception handler in every assertion; the test case has
# one.
QUICK     := $(if $(filter -O2 -O3,$(OPTIMISE)),-O1)
SUITES    := $(filter %/communicator_suite.cpp.o $(if $(SANITIZE),,%/communicator_local.cpp.o),$(SUPPORT))
$(CASES) $(SUITES): private CXXFLAGS += $(QUICK:%=-Og) -DCATCH_CONFIG_FAST_COMPILE
$(OPERATIONS): private CXXFLAGS += $(QUICK)
$(if $(SANITIZE),$(filter-out $(PLAINBUILD)/%,$(CASES))): private CXXFLAGS += -O0 -fno-sanitize=undefined
ifneq ($(and $(SANITIZE),$(if $(RACES),,host)),)
$(HOSTBUILD)/llmc/%.o: private CXXFLAGS += -O0
endif
# Most of the time of host code goes to the optimiser, although nothing waits for JSON, files and messages: -Og, with
# the fused multiply-adds of -O3. -O3 remains for INNER_LOOPS and attention's softmax on a CPU, -O1 for the loops
# beside oneDNN's products.
ifeq ($(if $(RACES),,$(SANITIZE)),)
UNHURRIED := $(filter-out $(foreach file,$(INNER_LOOPS) llmc/inner_loops/united.cpp \
               kernels/attention/attention_cpu.cpp,$(HOSTBUILD)/$(file).o),$(filter $(HOSTBUILD)/%,$(LIBRARY)))
$(UNHURRIED) $(HOSTBUILD)/train_gpt2.cu.o $(HOSTBUILD)/dev/%.o: private CXXFLAGS += $(QUICK:%=-Og $(FUSED))
$(HOSTBUILD)/kernels/matmul/matmul_onednn.cpp.o $(HOSTBUILD)/dev/bench/%.o: private CXXFLAGS += $(QUICK:%=% $(FUSED))
endif
# cuDNN's frontend is templates that only build plans, and takes longest of all: 154 s with -O3, 90 s with -O1, 52 s
# without the JSON in which it could write plans (user time on a shared machine).
$(patsubst %,$(HOSTBUILD)/kernels/%_cudnn.cpp.o,attention/attention matmul/product): \
  private CXXFLAGS += -DCUDNN_FRONTEND_SKIP_JSON_LIB $(QUICK:%=-Og)
# The C++ classes of old MPI versions are not used and would need a library of their own.
$(HOSTBUILD)/llmc/comm/communicator_mpi.cpp.o: private CXXFLAGS += $(call includes,$(MPI_HEADERS)) -DOMPI_SKIP_MPICXX \
  -DMPICH_SKIP_MPICXX
ifeq ($(DEVICE),cuda)
$(foreach end,cuda cublaslt cudnn nccl,$(HOSTBUILD)/%_$(end).cpp.o $(HOSTBUILD)/%_$(end)_test.cpp.o): \
  private CXXFLAGS += $(CUDAFLAGS)
endif
COMMIT_OBJECT := $(filter %/version_host.cpp.o %/version_cuda.cpp.o,$(LIBRARY))
$(COMMIT_OBJECT): private CXXFLAGS += -DTRAIN_GPT2_COMMIT='"$(COMMIT)"'
$(COMMIT_OBJECT): $(HOSTBUILD)/commit

# ---- files that record how things were built, and united files

# $(eval $(call kept,FILE,TEXT)): writes TEXT to FILE if FILE has other contents, which rebuilds the targets that depend
# on it.
define kept
ifneq '$$(strip $$(file <$(1)))' '$(strip $(2))'
$(1): ALWAYS
endif
$(1):
	@mkdir -p $$(@D)
	@echo '$(strip $(2))' >$$@
endef
$(eval $(call kept,$(HOSTBUILD)/commit,$(COMMIT)))
$(eval $(call kept,$(BUILD)/library,$(LIBRARY) $(LDLIBS)))
$(eval $(call kept,$(BUILD)/cases,$(CASES) $(OPERATIONS) $(CATCH2)))
$(eval $(call kept,$(HOSTBUILD)/flags,$(CXX) $(CXXFLAGS)))
$(if $(filter-out $(HOSTBUILD),$(PLAINBUILD)),$(eval $(call kept,$(PLAINBUILD)/flags,$(CXX) $(PLAINFLAGS))))
$(eval $(call kept,$(BUILD)/flags,$(if $(filter cuda,$(DEVICE)),$(NVCC) $(NVCCFLAGS),$(CXX) $(CXXFLAGS) $(CUFLAGS) \
  $(KERNELDEF))))

# $(call unite,FOLDER,SOURCES): the rules that generate the unity sources, one file of #includes per folder.
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
$(call unite,$(PLAINBUILD),$(OPERATION_CPP))
$(call unite,$(BUILD),$(KERNEL_CU) $(TEST_CU) $(EXECUTOR))

# ---- for developers

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile
# Every file separately, with the commands that make would run.
COMPILATION := "^(?<command>\\S+ .* -c (?<file>\\S+) -o \\S+)"
compile_commands.json: ALWAYS
	@command -v jq >/dev/null || { echo "error: jq is missing; run: apt-get install jq" >&2; exit 1; }
	@$(MAKE) --no-print-directory --always-make --dry-run DEVICE=$(DEVICE) UNITE= CCACHE= all tools tests | jq -nR \
	  --arg directory '$(CURDIR)' '[inputs | capture($(COMPILATION)) | {$$directory, file, command}]' >$@ || \
	  { rm -f $@; exit 1; }
# TIDY: the files that clang-tidy reads, by default as many as take 30 s. .clang-tidy has the checks.
TIDY      ?= $(filter-out llmc/base/json_%,$(filter llmc/base/%.cpp,$(HOST_SRC)))
tidy: compile_commands.json
	clang-tidy --quiet -p . $(TIDY) 2>&1 | sed -E '/^[0-9]+ warnings? generated\.$$/d'; exit $${PIPESTATUS[0]}
tidy: SHELL := bash
# build/deps, build/python and build/aarch64/root are slow to make again.
clean:
	rm -rf $(filter-out build/deps build/python build/aarch64,$(wildcard build/*)) \
	  $(filter-out build/aarch64/root,$(wildcard build/aarch64/*)) train_gpt2 $(LINKED) compile_commands.json

.PHONY: all tools tests test install uninstall help tidy clean train_gpt2 $(LINKED) ALWAYS
-include $(shell find build -name '*.cpp.d' -o -name '*.cu.d' 2>/dev/null)
