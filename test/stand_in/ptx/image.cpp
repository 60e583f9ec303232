// image.cpp - kernels.ptx: the PTX of all kernels of the program, one module per source file
#include <dlfcn.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>

#include "test/stand_in/ptx/decode.h"
#include "test/stand_in/ptx/names.h"

namespace stand_in::ptx {
namespace {

// Read once; a module is parsed when one of its kernels is first used.
class Image {
public:
    Image() {
        Dl_info here{};
        dladdr(reinterpret_cast<const void*>(&signature_of), &here);
        const std::string library(here.dli_fname);
        const std::string path = library.substr(0, library.rfind('/') + 1) + "kernels.ptx";
        std::ifstream file(path, std::ios::binary);
        if (!file) stop(path + " is missing; test/stand_in/Makefile writes it");
        text_.assign(std::istreambuf_iterator<char>(file), {});
        const std::string_view text(text_);
        unsigned line = 1 + unsigned(std::count(text.begin(), text.begin() + std::ptrdiff_t(std::min(text.find(
                                                              "\n.version"), text.size())), '\n'));
        for (std::size_t at = text.find("\n.version"); at != text.npos;) {
            const std::size_t next = std::min(text.find("\n.version", at + 1), text.size());
            const std::string_view module = text.substr(at, next - at);
            lines_.push_back(line);
            line += unsigned(std::count(module.begin(), module.end(), '\n'));
            for (std::size_t name = 0; (name = module.find(".entry ", name)) != module.npos;) {
                name += 7;
                module_of_[module.substr(name, module.find_first_of("( \n", name) - name)] = sources_.size();
            }
            sources_.push_back(module);
            at = next == text.size() ? text.npos : next;
        }
        modules_.resize(sources_.size());
    }

    const Signature* signature(std::string_view kernel) {
        if (const auto known = signatures_.find(kernel); known != signatures_.end()) return &known->second;
        const FunctionText* const text = text_of(kernel);
        if (!text) return nullptr;
        Signature signature{.most_threads = text->most_threads};
        for (const Variable& parameter : text->parameters) {
            signature.parameter_bytes = aligned(signature.parameter_bytes, parameter.alignment);
            signature.parameters.push_back({signature.parameter_bytes, parameter.bytes});
            signature.parameter_bytes += parameter.bytes;
        }
        return &signatures_.emplace(text->name, std::move(signature)).first->second;
    }
    const Function* function(std::string_view kernel) {
        if (const auto known = functions_.find(kernel); known != functions_.end()) return &known->second;
        const FunctionText* const text = text_of(kernel);
        if (!text) return nullptr;
        Function decoded = decode(*modules_[module_of_.at(kernel)], *text);
        return &functions_.emplace(text->name, std::move(decoded)).first->second;
    }

private:
    const FunctionText* text_of(std::string_view kernel) {
        const auto found = module_of_.find(kernel);
        if (found == module_of_.end()) return nullptr;
        auto& module = modules_[found->second];
        if (!module) module = std::make_unique<Module>(ptx::module_of(sources_[found->second], lines_[found->second]));
        return &module->functions.at(kernel);
    }

    std::string text_;
    std::vector<std::string_view> sources_;  // of modules
    std::vector<unsigned> lines_;            // first line of each
    std::vector<std::unique_ptr<Module>> modules_;
    std::map<std::string_view, std::size_t> module_of_;
    std::map<std::string_view, Signature> signatures_;
    std::map<std::string_view, Function> functions_;
};

Image& image() {
    static Image& only = *new Image;
    return only;
}

}  // namespace

const Signature* signature_of(std::string_view kernel) { return image().signature(kernel); }
const Function* function_of(std::string_view kernel) { return image().function(kernel); }

Function decode(std::string_view text, std::string_view kernel) {
    const Module module = module_of(text, 1);
    return decode(module, module.functions.at(kernel));
}

}  // namespace stand_in::ptx
