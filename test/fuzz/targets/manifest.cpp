// manifest.cpp - the manifest of a checkpoint, with a correct checksum of its own, which mutations would not find
#include "llmc/weights/manifest.h"

#include <nlohmann/json.hpp>

#include "llmc/base/json_text.h"
#include "test/fuzz/target.h"

namespace {

const fuzz::Target manifest("manifest", [](std::string_view bytes) {
    fuzz::file_with("empty", "");
    fuzz::file_with("model", "abc");
    nlohmann::json json = llmc::parse_json(bytes);
    if (json.is_object() && json.contains("files") && !json.contains("damaged")) {
        const std::string files = llmc::text_of(json["files"]);
        json["xxh3"] = llmc::fingerprint(std::as_bytes(std::span(files)));
        fuzz::file_with(llmc::kManifestName, llmc::text_of(json));
    } else {
        fuzz::file_with(llmc::kManifestName, bytes);
    }
    llmc::check_manifest(fuzz::scratch_folder());
    for (const auto& [name, file] : json["files"].items()) {
        fuzz::must(name == "empty" || name == "model", "a manifest of the folder's files: " + name);
        fuzz::must(file["bytes"] == (name == "empty" ? 0 : 3), "the size of " + name);
    }
});

}  // namespace
