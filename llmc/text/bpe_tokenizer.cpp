// bpe_tokenizer.cpp - encodes pieces of a text with a cache and the encoder; decodes ids with a table
#include "llmc/text/bpe_tokenizer.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "llmc/text/bpe_encoder.h"
#include "llmc/text/bpe_split.h"

namespace llmc {

// Caches, for each hash value, the last piece of up to 15 bytes and its up to 7 ids: 2 MiB. The hit rate is about 90 %.
class PieceCache {
public:
    struct Entry {
        std::uint64_t low = 0, high = 0;  // the bytes, then zeros; their number in the last byte
        std::uint16_t count = 0, ids[7] = {};
    };
    static constexpr std::size_t kLongest = 15;

    // `after`: the number of readable bytes after the piece.
    Entry& find(std::string_view piece, std::size_t after, bool& known) {
        std::uint64_t low = 0, high = 0;
        if (piece.size() + after >= 16) {
            std::memcpy(&low, piece.data(), 8);
            std::memcpy(&high, piece.data() + 8, 8);
            const std::size_t bits = 8 * piece.size();
            if (bits < 64) {
                low &= (std::uint64_t(1) << bits) - 1;
                high = 0;
            } else {
                high &= (std::uint64_t(1) << (bits - 64)) - 1;
            }
        } else {
            std::memcpy(&low, piece.data(), std::min<std::size_t>(8, piece.size()));
            if (piece.size() > 8) std::memcpy(&high, piece.data() + 8, piece.size() - 8);
        }
        high |= std::uint64_t(piece.size()) << 56;
        const std::uint64_t mixed = (low ^ high * 0xc2b2ae3d27d4eb4fu) * 0x9e3779b97f4a7c15u;
        Entry& entry = entries_[mixed >> (64 - kBits)];
        known = entry.low == low && entry.high == high;
        if (!known) entry = {low, high, 0, {}};
        return entry;
    }

private:
    static constexpr int kBits = 16;
    std::vector<Entry> entries_ = std::vector<Entry>(std::size_t(1) << kBits);
};

// The state that one call of append() uses.
class BpeTokenizer::Worker {
public:
    explicit Worker(const BpeEncoder& encoder) : encoder_(encoder) {}

    void append(std::string_view text, std::vector<std::uint16_t>& ids) {
        const char* const end = text.data() + text.size();
        matcher_.split(text, [&](std::string_view piece) {
            if (piece.size() > PieceCache::kLongest) return encoder_.encode(piece, memory_, ids);
            bool known = false;
            auto& entry = cache_.find(piece, std::size_t(end - piece.data()) - piece.size(), known);
            if (known) {
                for (int i = 0; i < entry.count; ++i) ids.push_back(entry.ids[i]);
                return;
            }
            const std::size_t before = ids.size();
            encoder_.encode(piece, memory_, ids);
            const std::size_t count = ids.size() - before;
            if (count > std::size(entry.ids)) {
                entry = {};
                return;
            }
            entry.count = std::uint16_t(count);
            std::copy_n(ids.begin() + std::ptrdiff_t(before), count, entry.ids);
        });
    }

private:
    const BpeEncoder& encoder_;
    BpeMatcher matcher_;
    BpeEncoder::Memory memory_;
    PieceCache cache_;
};

struct BpeTokenizer::Workers {
    explicit Workers(const BpeMerges& merges) : encoder(merges) {}

    std::unique_ptr<Worker> take() {
        {
            const std::lock_guard lock(mutex);
            if (!idle.empty()) {
                auto worker = std::move(idle.back());
                idle.pop_back();
                return worker;
            }
        }
        return std::make_unique<Worker>(encoder);
    }
    void give_back(std::unique_ptr<Worker> worker) {
        const std::lock_guard lock(mutex);
        idle.push_back(std::move(worker));
    }

    BpeEncoder encoder;
    std::mutex mutex;
    std::vector<std::unique_ptr<Worker>> idle;
};

BpeTokenizer::BpeTokenizer(BpeMerges merges)
    : merges_(std::move(merges)),
      vocabulary_(merges_.vocabulary()),
      tokens_(merges_.tokens()),
      workers_(std::make_unique<Workers>(merges_)) {}
BpeTokenizer::~BpeTokenizer() = default;

void BpeTokenizer::append(std::string_view text, std::vector<std::uint16_t>& ids) const {
    auto worker = workers_->take();
    worker->append(text, ids);
    workers_->give_back(std::move(worker));
}

std::size_t BpeTokenizer::certain_prefix(std::string_view text) const { return certain_pieces(text); }

}  // namespace llmc
