// namespace.h - every layer uses the names of namespace base unqualified
#pragma once

namespace base {}
namespace bench { using namespace base; }
namespace device { using namespace base; }
namespace kernels { using namespace base; }
namespace llmc { using namespace base; }
namespace operations { using namespace base; }
namespace simt { using namespace base; }
namespace test { using namespace base; }
