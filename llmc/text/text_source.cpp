// text_source.cpp - reads files and pipes, decompressing with zlib and zstd
#include "llmc/text/text_source.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "llmc/base/file_name.h"
#include "llmc/base/file_status.h"
#include "llmc/base/number_text.h"

namespace llmc {
namespace {

constexpr std::size_t kTextInputBytes = 1 << 18;

int open_text(const std::string& path, const std::string& what, std::int64_t& size) {
    const struct stat status = status_of_file(path, what);
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) fail_as_unreadable(what);
    if (S_ISREG(status.st_mode)) size = std::int64_t(status.st_size);
    return descriptor;
}

struct OtherFormat {
    std::size_t at;
    std::string_view magic;
    const char *kind, *how;
};
constexpr const char* kFromUtf16 = "convert it: iconv -f UTF-16 -t UTF-8";
constexpr OtherFormat kOthers[] = {
    {0, "\xfd\x37zXZ", "compressed by xz", "decompress it: xz -d"},
    {0, "BZh", "compressed by bzip2", "decompress it: bzip2 -d"},
    {0, "PK\x03\x04", "a zip archive", "unpack it: unzip"},
    {0, "PAR1", "a Parquet table", "convert it: dev/data/parquet_lines.py FILE | dev/tokenize --format jsonl -"},
    {0, "\xff\xfe", "text in UTF-16", kFromUtf16},
    {0, "\xfe\xff", "text in UTF-16", kFromUtf16},
    {0, "%PDF-", "a PDF document", "convert it: pdftotext"},
    {257, "ustar", "a tar archive", "unpack it: tar -xf"}};

// `text`: its start, decompressed.
void refuse_others(const std::string& what, std::string_view text) {
    for (const auto& [at, magic, kind, how] : kOthers)
        if (text.size() > at && text.substr(at).starts_with(magic))
            fail(what, kind, "text in UTF-8 or lines of JSON, plain or compressed by gzip or zstd", how);
}

}  // namespace

struct TextSource::State {
    enum class Packing { none, gzip, zstd };
    std::string path, what;
    std::function<void()> interrupted;
    int descriptor = -1;
    std::int64_t size = 0, taken = 0;
    Packing packing = Packing::none;
    std::vector<char> input = std::vector<char>(kTextInputBytes);
    std::size_t begin = 0, end = 0;  // range of unread input
    bool within = false;             // inside a member or frame
    bool checked = false;            // the start of the text
    z_stream gzip{};
    ZSTD_DStream* zstd = nullptr;

    ~State() {
        if (packing == Packing::gzip) ::inflateEnd(&gzip);
        ZSTD_freeDStream(zstd);
        if (descriptor > 0) ::close(descriptor);
    }

    // False at the end of the file.
    bool refill() {
        if (begin < end) return true;
        begin = end = 0;
        return append(Blame::runtime);
    }
    // Reads from the file into `input`. False at the end of the file.
    bool append(Blame blame) {
        ssize_t got;
        while ((got = ::read(descriptor, input.data() + end, input.size() - end)) < 0 && errno == EINTR) interrupted();
        if (got < 0)
            fail(what, "unreadable (" + std::string(std::strerror(errno)) + ")", "a file that can be read to its end",
                 blame == Blame::runtime ? "check its disk" : "check its source", blame);
        end += std::size_t(got);
        taken += got;
        if (got == 0 && size > 0 && taken != size)
            fail(what, counted(taken, "byte"), "the " + std::to_string(size) + " that it had when it was opened",
                 "do not change it while it is read", Blame::runtime);
        return got > 0;
    }
    [[noreturn]] void damaged(const std::string& how) const {
        fail(what, how, packing == Packing::gzip ? "complete gzip data" : "complete zstd data", "copy it again");
    }

    std::size_t read_more(std::span<char> room) {
        return packing == Packing::gzip   ? read_gzip(room)
               : packing == Packing::zstd ? read_zstd(room)
                                          : read_plain(room);
    }
    std::size_t read_plain(std::span<char> room) {
        const std::size_t count = std::min(room.size(), end - begin);
        std::memcpy(room.data(), input.data() + begin, count);
        begin += count;
        return count;
    }
    std::size_t read_gzip(std::span<char> room) {
        // Zeros after a member are ignored, as gzip does: blocks of a tape have a fixed size.
        while (!within && begin < end && input[begin] == 0) ++begin;
        if (begin == end && !within) return 0;
        if (!within && ::inflateReset(&gzip) != Z_OK) damaged("refused by zlib");
        within = true;
        gzip.next_in = reinterpret_cast<Bytef*>(input.data() + begin);
        gzip.avail_in = uInt(end - begin);
        gzip.next_out = reinterpret_cast<Bytef*>(room.data());
        gzip.avail_out = uInt(std::min<std::size_t>(room.size(), 1 << 30));
        const uInt wanted = gzip.avail_out;
        const int answer = ::inflate(&gzip, Z_NO_FLUSH);
        begin = end - gzip.avail_in;
        if (answer == Z_STREAM_END) within = false;
        else if (answer != Z_OK && answer != Z_BUF_ERROR)
            damaged("damaged (" + std::string(gzip.msg ? gzip.msg : "?") + ")");
        return wanted - gzip.avail_out;
    }
    std::size_t read_zstd(std::span<char> room) {
        ZSTD_inBuffer in = {input.data(), end, begin};
        ZSTD_outBuffer out = {room.data(), room.size(), 0};
        const std::size_t answer = ZSTD_decompressStream(zstd, &out, &in);
        if (ZSTD_getErrorCode(answer) == ZSTD_error_memory_allocation)
            fail(what, "compressed with a larger window than this process has memory for", "at most 2 GB, of --long=31",
                 "free memory, raise the limits of this process (ulimit -v), or compress it again", Blame::runtime);
        if (ZSTD_isError(answer)) damaged("damaged (" + std::string(ZSTD_getErrorName(answer)) + ")");
        begin = in.pos;
        within = answer != 0;
        return out.pos;
    }
};

TextSource::TextSource(const std::string& path, std::function<void()> interrupted)
    : state_(std::make_unique<State>()) {
    State& s = *state_;
    s.path = path;
    s.interrupted = std::move(interrupted);
    s.what = path == "-" ? "standard input" : "text file " + path;
    s.descriptor = path == "-" ? STDIN_FILENO : open_text(path, s.what, s.size);
    // Enough bytes to identify the format; a pipe may deliver them one by one.
    while (s.end < 4 && s.append(Blame::input)) {
    }
    using Packing = State::Packing;
    const std::string_view start(s.input.data(), s.end);
    // 0x184D2A50 to 0x184D2A5F, in little-endian order: a frame to skip, with which pzstd begins.
    const bool skipped = s.end >= 4 && (start[0] & 0xf0) == 0x50 && start.substr(1).starts_with("\x2a\x4d\x18");
    const Packing found = start.starts_with("\x1f\x8b")                      ? Packing::gzip
                          : skipped || start.starts_with("\x28\xb5\x2f\xfd") ? Packing::zstd
                                                                             : Packing::none;
    const Packing named = has_ending(path, ".gz")    ? Packing::gzip
                          : has_ending(path, ".zst") ? Packing::zstd
                                                     : Packing::none;
    if (named != Packing::none && named != found && s.end > 0)
        fail(s.what, "not in " + std::string(named == Packing::gzip ? "gzip" : "zstd") + " format",
             "the format of its name", "rename it, or copy it again");
    const Packing packing = found;
    if (s.end > 0 && packing == Packing::gzip) {
        constexpr int kGzipOnly = 15 + 16;
        if (::inflateInit2(&s.gzip, kGzipOnly) != Z_OK)
            fail("memory for zlib", "not available", "a few kilobytes", "end other programs", Blame::runtime);
        s.packing = packing;
    }
    if (s.end > 0 && packing == Packing::zstd) {
        s.zstd = ZSTD_createDStream();
        if (!s.zstd) fail("memory for zstd", "not available", "a few megabytes", "end other programs", Blame::runtime);
        constexpr int kLargestWindow = 31;  // of any zstd; without this, windows are refused that its --long needs
        ZSTD_DCtx_setParameter(s.zstd, ZSTD_d_windowLogMax, kLargestWindow);
        s.packing = packing;
    }
}
TextSource::~TextSource() = default;

const std::string& TextSource::path() const { return state_->path; }
std::int64_t TextSource::bytes_taken() const { return state_->taken; }
std::int64_t TextSource::bytes_in_all() const { return state_->size; }

std::size_t TextSource::read(std::span<char> room) {
    State& s = *state_;
    std::size_t filled = 0;
    while (filled < room.size()) {
        // The decompressor may return buffered output without new input.
        const bool more = s.refill();
        if (!more && !s.within) break;
        const auto rest = room.subspan(filled);
        const std::size_t got = s.read_more(rest);
        if (!more && got == 0 && s.within) s.damaged("cut off");
        filled += got;
    }
    if (!std::exchange(s.checked, true)) refuse_others(s.what, {room.data(), filled});
    return filled;
}

}  // namespace llmc
