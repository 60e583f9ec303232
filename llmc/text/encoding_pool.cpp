// encoding_pool.cpp - the threads that encode batches, and extraction of the text of JSON lines
#include "llmc/text/encoding_pool.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "kernels/base/error.h"
#include "kernels/base/start_thread.h"
#include "llmc/base/json_text.h"
#include "llmc/base/utf8.h"
#include "llmc/text/bpe_split.h"
#include "llmc/text/text_source.h"

namespace llmc {

EncodingPool::EncodingPool(const Tokenizer* tokenizer, const std::vector<std::string>& files, const std::string& field,
                           int threads)
    : tokenizer_(tokenizer),
      files_(files),
      field_(field),
      max_jobs_(std::size_t(2 * threads + 1)) {
    for (int i = 0; i < threads; ++i)
        threads_.push_back(start_thread<std::jthread>([this](const std::stop_token& stop) { work(stop); }));
}

void EncodingPool::submit(TextBatch batch) {
    std::packaged_task<TokenBatch()> task([this, batch = std::move(batch)] { return encode(batch); });
    results_.push_back(task.get_future());
    {
        const std::lock_guard lock(mutex_);
        waiting_.push_back(std::move(task));
    }
    submitted_.notify_one();
}

TokenBatch EncodingPool::take() {
    std::future<TokenBatch> oldest = std::move(results_.front());
    results_.pop_front();
    return oldest.get();
}

void EncodingPool::work(const std::stop_token& stop) {
    while (true) {
        std::packaged_task<TokenBatch()> task;
        {
            std::unique_lock lock(mutex_);
            submitted_.wait(lock, stop, [&] { return !waiting_.empty(); });
            if (stop.stop_requested()) return;
            task = std::move(waiting_.front());
            waiting_.pop_front();
        }
        task();
    }
}

TokenBatch EncodingPool::encode(const TextBatch& batch) const {
    std::string_view rest = batch.text;
    TokenBatch tokens;
    std::optional<BpeMatcher> matcher;
    if (!tokenizer_) {
        matcher.emplace();
        tokens.text = std::make_unique<TextBatch>();
        tokens.text->text.reserve(batch.text.size());  // the texts of JSON are shorter, so pieces stay where they are
    }
    for (const TextBatch::Part& part : batch.parts) {
        std::string_view text = rest.substr(0, part.length);
        rest.remove_prefix(part.length);
        std::string of_line;
        if (part.json) text = of_line = text_of_line(text, part, tokens.lone_surrogates);
        (part.held_out ? tokens.val_bytes : tokens.train_bytes) += std::int64_t(text.size());
        if (tokenizer_) {
            auto& ids = part.held_out ? tokens.val : tokens.train;
            if (part.begins) ids.push_back(std::uint16_t(tokenizer_->vocabulary().end_of_text));
            tokenizer_->append(text, ids);
        } else {
            std::string& all = tokens.text->text += text;
            tokens.text->parts.push_back({.length = text.size(), .held_out = part.held_out, .begins = part.begins});
            if (!part.held_out) tokens.pieces.add(std::string_view(all).substr(all.size() - text.size()), *matcher);
        }
    }
    return tokens;
}

std::string EncodingPool::text_of_line(std::string_view line, const TextBatch::Part& part,
                                       std::int64_t& lone_surrogates) const {
    const std::string place = name_of_text(files_[part.file]) + ": line " + std::to_string(part.line);
    std::string why;
    nlohmann::json object = parse_json_line(line, lone_surrogates, why);
    if (const std::size_t valid = object.is_discarded() ? valid_length(line) : line.size(); valid < line.size())
        fail(place, "not in UTF-8 (column " + std::to_string(valid + 1) + ")", "UTF-8",
             "convert the file: iconv -f ENCODING -t UTF-8");
    if (!object.is_object())
        fail(place, object.is_discarded() ? "not valid JSON: " + why : "not a JSON object", "an object on each line",
             "fix or remove the line");
    const auto found = object.find(field_);
    if (found == object.end() || !found->is_string())
        fail(place + ": the field " + in_quotes(field_),
             found == object.end() ? "missing" : found->is_null() ? "null, NaN or Infinity" : excerpt(*found),
             "a string", found == object.end() ? "set --field to the field that has the text"
                                             : "fix or remove the line");
    return std::move(found->get_ref<std::string&>());
}

}  // namespace llmc
