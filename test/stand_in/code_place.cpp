// code_place.cpp - positions of code in the modules of this process
#include <link.h>

#include <string_view>

#include "test/stand_in/protocol.h"

namespace stand_in {
namespace {

std::string_view file_of(const dl_phdr_info& module) {
    const std::string_view path(module.dlpi_name);
    return path.substr(path.rfind('/') + 1);
}

struct Search {
    CodePlace place;
    std::uintptr_t code;
};

}  // namespace

CodePlace place_of(const void* code) {
    Search search{{}, reinterpret_cast<std::uintptr_t>(code)};
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* argument) {
            auto& wanted = *static_cast<Search*>(argument);
            for (int i = 0; i < info->dlpi_phnum; ++i) {
                const auto& segment = info->dlpi_phdr[i];
                if (segment.p_type != PT_LOAD || wanted.code - info->dlpi_addr - segment.p_vaddr >= segment.p_memsz)
                    continue;
                file_of(*info).copy(wanted.place.module, sizeof wanted.place.module - 1);
                wanted.place.offset = wanted.code - info->dlpi_addr;
                return 1;
            }
            return 0;
        },
        &search);
    return search.place;
}

std::uintptr_t code_at(const CodePlace& place) {
    Search search{place, 0};
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* argument) {
            auto& wanted = *static_cast<Search*>(argument);
            if (file_of(*info) != wanted.place.module) return 0;
            wanted.code = info->dlpi_addr + wanted.place.offset;
            return 1;
        },
        &search);
    if (!search.code) stop("no module " + std::string(place.module) + " in the device process");
    return search.code;
}

}  // namespace stand_in
