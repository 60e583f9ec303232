// encoding_pool.h - texts to ids on several threads, taken in the order in which they were given
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

// Some hundred kilobytes of text: parts of documents, one behind the other.
struct TextBatch {
    struct Part {
        std::size_t length = 0;  // bytes
        bool held_out = false;   // for validation
        bool begins = false;     // a document, so that an end of text comes before it
        bool json = false;       // a line of which one field is the text
        std::size_t file = 0;    // its number, and that of the line: for messages
        std::int64_t line = 0;
    };
    std::string text;
    std::vector<Part> parts;
};

struct TokenBatch {
    std::vector<std::uint16_t> train, val;
    std::int64_t train_bytes = 0, val_bytes = 0;  // of text
};

class EncodingPool {
public:
    // `files` are named in messages; `field` is that of JSON. All of them must outlive it. threads >= 1.
    EncodingPool(const Tokenizer& tokenizer, const std::vector<std::string>& files, const std::string& field,
                 int threads);
    ~EncodingPool();  // leaves undone what is not taken

    void give(TextBatch batch);
    // Whether as many batches are under way as keep all threads busy.
    bool full() const { return jobs_.size() >= most_; }
    bool empty() const { return jobs_.empty(); }
    // The oldest batch that is not taken yet; waits for it. Throws what encoding it threw: an Error that names file and
    // line for a line that is no JSON object or has no such text.
    TokenBatch take();

private:
    struct Job {
        TextBatch text;
        TokenBatch tokens{};
        std::exception_ptr failure{};
        bool done = false;
    };
    void work();
    void encode(Job& job) const;
    std::string text_of_line(std::string_view line, const TextBatch::Part& part) const;

    const Tokenizer& tokenizer_;
    const std::vector<std::string>& files_;
    const std::string& field_;
    std::size_t most_;
    std::mutex mutex_;
    std::condition_variable given_, done_;
    std::deque<std::unique_ptr<Job>> jobs_;  // in order
    std::deque<Job*> waiting_;               // those that no thread has begun
    bool stop_ = false;
    std::vector<std::jthread> threads_;
};

}  // namespace llmc
