// file_status_test.cpp - the advice for a file that the system does not let the program read
#include "llmc/base/file_status.h"

#include "test/support/scratch_folder.h"

using namespace llmc;
using namespace test;

TEST_CASE("each reason why a file cannot be read has its own advice", "[file_status]") {
    const auto said = [](int fault) { return error_of([&] { fail_as_unreadable("model", fault); }); };
    CHECK_THAT(said(EACCES), Contains("model is unreadable (Permission denied)") && Contains("; check its perm"));
    CHECK_THAT(said(ENOMEM), Contains("; free memory") && Contains("ulimit -v"));
    CHECK_THAT(said(EMFILE), Contains("ulimit -n"));
    CHECK_THAT(said(ENFILE), Contains("fs.file-max"));
    CHECK_THAT(said(ELOOP), Contains("; remove the loop of symbolic links"));
    CHECK_THAT(said(EIO), Contains("; check its disk"));
}
