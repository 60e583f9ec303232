// parquet_lines.h - a column of text of a Parquet table as lines of JSON, which dev/data/parquet_lines.py writes to a
// pipe: Python's pyarrow reads the format
#pragma once
#include <sys/types.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "llmc/base/file_name.h"

namespace llmc {

inline bool is_parquet(std::string_view path) { return has_ending(path, ".parquet"); }

class ParquetLines {
public:
    // Starts the program. Throws Error if there is no python3.
    ParquetLines(const std::string& path, const std::string& column);
    // Ends the program.
    ~ParquetLines();
    ParquetLines(const ParquetLines&) = delete;
    ParquetLines& operator=(const ParquetLines&) = delete;

    int descriptor() const { return lines_; }  // to read the lines from
    // Call it at the end of the lines. Throws Error with the program's message if it failed.
    void check_end();

private:
    std::string path_;
    pid_t program_ = 0;
    int lines_ = -1;
    std::FILE* errors_ = nullptr;
};

}  // namespace llmc
