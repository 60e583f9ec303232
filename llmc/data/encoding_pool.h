// encoding_pool.h - encodes texts on several threads; results come in the order of submission
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "llmc/data/tokenizer.h"

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
};

class EncodingPool {
public:
    // `files` are the names for messages; `field` is the JSON field with the text. All arguments must outlive the pool.
    // threads >= 1.
    EncodingPool(const Tokenizer& tokenizer, const std::vector<std::string>& files, const std::string& field,
                 int threads);
    ~EncodingPool();  // discards batches that were not taken

    void submit(TextBatch batch);
    // Whether enough batches are submitted to keep all threads busy.
    bool full() const { return jobs_.size() >= max_jobs_; }
    bool empty() const { return jobs_.empty(); }
    // Waits for the oldest batch that was not taken yet and returns it. Rethrows the exception of its encoding: an
    // Error that names file and line for a line that is not a JSON object or has no text in that field.
    TokenBatch take();

private:
    struct Job {
        TextBatch text;
        TokenBatch tokens{};
        std::exception_ptr failure{};
        bool done = false;
    };
    void work();
    void stop();
    void encode(Job& job) const;
    std::string text_of_line(std::string_view line, const TextBatch::Part& part, std::int64_t& lone_surrogates) const;

    const Tokenizer& tokenizer_;
    const std::vector<std::string>& files_;
    const std::string& field_;
    std::size_t max_jobs_;
    std::mutex mutex_;
    std::condition_variable submitted_, done_;
    std::deque<std::unique_ptr<Job>> jobs_;  // in order
    std::deque<Job*> waiting_;               // jobs that no thread has started
    bool stop_ = false;
    std::vector<std::jthread> threads_;
};

}  // namespace llmc
