// tokenizer_files.h - a tokenizer as files beside a model, which transformers' AutoTokenizer opens without more
//
//   tokenizer.json           the tokens, their merges and GPT-2's pieces; of bytes: 256 tokens, no merges
//   tokenizer_config.json    its class, the end of text, and how many tokens the model can take
//   generation_config.json   where generation begins and ends
//
// There "<|endoftext|>" in a text is the end of text, as everywhere in transformers; Tokenizer takes it for text.
#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "llmc/data/tokenizer.h"

namespace llmc {

// By name. `positions`: of the model. Empty where the tokenizer has no table.
using TokenizerFiles = std::map<std::string, std::string>;
TokenizerFiles tokenizer_files(const Tokenizer& tokenizer, int positions);

// The tokenizer of a model's folder: of GPT-2's vocabulary by its tokenizer.json, else merges.txt, else vocab.bpe, else
// by the merges that are at hand; of other vocabularies that of tokenizer_for(). Throws Error where such a file is
// damaged or holds another table than GPT-2's.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& folder, Vocabulary vocabulary);

}  // namespace llmc
