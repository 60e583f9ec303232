// operation.cpp - the tensors of operation.h and the list of registrations
#include "test/operations/operation.h"

#include <cstring>

namespace operations {

Storage::Storage(std::string name, Role role, std::size_t size, const Element& element, const Fill& fill, unsigned seed)
    : name(std::move(name)),
      role(role),
      size(size),
      element(&element),
      period_(std::max<std::size_t>(1, std::min<std::size_t>(size, 1 << 20))),
      initial_(period_ * element.size, std::byte(0xff)) {
    if (!is_read()) return;
    std::mt19937 engine(seed);
    std::normal_distribution<double> normal(fill.mean, fill.deviation);
    for (std::size_t i = 0; i < period_; ++i)
        element.narrow(&initial_[i * element.size], i < fill.first.size() ? fill.first[i] : normal(engine));
}

void Storage::set_initial(const std::vector<double>& values) {
    period_ = std::max<std::size_t>(1, values.size());
    initial_.resize(period_ * element->size);
    for (std::size_t i = 0; i < values.size(); ++i) element->narrow(&initial_[i * element->size], values[i]);
}

void Storage::reset() {
    const std::size_t bytes = size * element->size, block = period_ * element->size;
    if (memory_.bytes() == 0) memory_ = device::Memory(bytes + 2 * kGuard);
    const std::vector<std::byte> guard(kGuard, std::byte(0xff));
    device::copy_to_device(memory_.data(), guard.data(), kGuard, nullptr);
    for (std::size_t first = 0; first < bytes; first += block)
        device::copy_to_device(data() + first, initial_.data(), std::min(block, bytes - first), nullptr);
    device::copy_to_device(data() + bytes, guard.data(), kGuard, nullptr);
    device::sync(nullptr);
}

std::vector<std::byte> Storage::bytes() const {
    std::vector<std::byte> host(memory_.bytes());
    device::copy_to_host(host.data(), memory_.data(), host.size(), nullptr);
    device::sync(nullptr);
    return host;
}

std::vector<std::byte> Storage::bytes_before() const {
    std::vector<std::byte> host(size * element->size + 2 * kGuard, std::byte(0xff));
    for (std::size_t i = 0; i < size; ++i)
        std::memcpy(&host[kGuard + i * element->size], &initial_[i % period_ * element->size], element->size);
    return host;
}

std::string Registration::describe(const Shape& shape) const {
    std::string text;
    for (std::size_t i = 0; i < shape.size(); ++i)
        text += (i ? ", " : "") + dimensions[i] + " " + std::to_string(shape[i]);
    return text;
}

namespace {
std::vector<Registration>& registrations() {
    static std::vector<Registration> list;
    return list;
}
}  // namespace

Registered::Registered(Registration registration) { registrations().push_back(std::move(registration)); }

const std::vector<Registration>& all() { return registrations(); }

std::vector<Shape> with_each(const std::vector<Shape>& shapes, const std::vector<int>& last) {
    std::vector<Shape> result;
    for (const Shape& shape : shapes)
        for (const int number : last) {
            result.push_back(shape);
            result.back().push_back(number);
        }
    return result;
}

std::vector<Shape> joined(std::vector<Shape> shapes, const std::vector<Shape>& more) {
    shapes.insert(shapes.end(), more.begin(), more.end());
    return shapes;
}

}  // namespace operations
