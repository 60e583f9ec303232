// encoding_pool.h - encodes texts on several threads, or counts their pieces; results come in the order of submission
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "llmc/text/bpe_training.h"
#include "llmc/text/tokenizer.h"

namespace llmc {

// A few hundred kilobytes of text: consecutive parts of documents.
struct TextBatch {
    struct Part {
        std::size_t length = 0;  // bytes
        bool held_out = false;   // for validation
        bool begins = false;     // the first part of a document: an end-of-text token precedes it
        bool json = false;       // a line of JSON; one field is the text
        std::size_t file = 0;    // the numbers of the file and line, for messages
        std::int64_t line = 0;
    };
    std::string text;
    std::vector<Part> parts;
};

struct TokenBatch {
    std::vector<std::uint16_t> train, val;
    std::int64_t train_bytes = 0, val_bytes = 0;  // of text
    std::int64_t lone_surrogates = 0;             // in lines of JSON, replaced by U+FFFD
    // Without a tokenizer: the texts, no longer in JSON, and the pieces of those for training, which are parts of it.
    std::unique_ptr<TextBatch> text;
    PieceCounts pieces;
};

class EncodingPool {
public:
    // `files` are the names for messages; `field` is the JSON field with the text. All arguments must outlive the pool.
    // Null `tokenizer`: pieces are counted. threads >= 1.
    EncodingPool(const Tokenizer* tokenizer, const std::vector<std::string>& files, const std::string& field,
                 int threads);

    void submit(TextBatch batch);
    // Whether enough batches are submitted to keep all threads busy.
    bool full() const { return results_.size() >= max_jobs_; }
    bool empty() const { return results_.empty(); }
    // Waits for the oldest batch that was not taken yet and returns it. Rethrows the exception of its encoding: an
    // Error that names file and line for a line that is not a JSON object or has no text in that field.
    TokenBatch take();

private:
    void work(const std::stop_token& stop);
    TokenBatch encode(const TextBatch& batch) const;
    std::string text_of_line(std::string_view line, const TextBatch::Part& part, std::int64_t& lone_surrogates) const;

    const Tokenizer* tokenizer_;
    const std::vector<std::string>& files_;
    const std::string& field_;
    std::size_t max_jobs_;
    std::mutex mutex_;
    std::condition_variable_any submitted_;
    std::deque<std::packaged_task<TokenBatch()>> waiting_;  // that no thread has started
    std::deque<std::future<TokenBatch>> results_;           // in order
    std::vector<std::jthread> threads_;  // declared last: stop before the other members are destroyed
};

}  // namespace llmc
