// optimizer_state.cpp - sizes and ranges of an optimizer's state
#include "llmc/model/optimizer_state.h"

namespace llmc {

std::vector<ElementRange> StateTensor::ranges() const {
    std::vector<ElementRange> all;
    for (const Piece& piece : pieces) all.push_back({.first = piece.first, .size = std::ssize(piece.values)});
    return all;
}

std::int64_t StateTensor::elements() const {
    std::int64_t sum = 0;
    for (const Piece& piece : pieces) sum += std::ssize(piece.values);
    return sum;
}

std::int64_t StateFile::elements() const {
    std::int64_t sum = 0;
    for (const StateTensor& tensor : tensors) sum += tensor.elements();
    return sum;
}

}  // namespace llmc
