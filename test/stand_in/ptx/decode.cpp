// decode.cpp - decodes PTX statements: names become rows of the register file, labels become code positions
//
// Called functions are inlined: their parameters are rows of the caller.
#include "test/stand_in/ptx/decode.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "test/stand_in/ptx/names.h"

namespace stand_in::ptx {
namespace {

class Decoder : Names {
public:
    Decoder(const Module& module, const FunctionText& text) : Names(module, text), text_(text) {}
    Function decode() {
        place({"", text_.line});
        decode_body(text_, kNone);
        // Dynamic shared memory starts at an alignment that suits every type.
        function_.dynamic_shared_at = function_.shared_bytes = aligned(function_.shared_bytes, 128);
        return std::move(function_);
    }

private:
    using Operands = std::vector<std::string_view>;

    // A body that is being decoded. A "ret" jumps to its end if it was called, or ends the lanes.
    struct Body {
        std::map<std::string_view, std::uint32_t> labels;
        std::vector<std::pair<std::uint32_t, std::string_view>> jumps;  // instruction, label
        std::vector<std::uint32_t> returns;
        bool is_called = false;
    };

    void decode_body(const FunctionText& text, std::uint32_t called_by) {
        Body* const outer = std::exchange(body_, nullptr);
        Body body{.is_called = called_by != kNone};
        body_ = &body;
        const std::vector<Statement> statements = statements_of(text);
        for (const Statement& statement : statements) decode(statement);
        for (const auto& [at, label] : body.jumps) {
            const auto found = body.labels.find(label);
            if (found == body.labels.end()) wrong("no label " + std::string(label));
            function_.code[at].target = found->second;
        }
        for (const std::uint32_t at : body.returns) function_.code[at].target = std::uint32_t(function_.code.size());
        body_ = outer;
    }

    void decode(const Statement& statement) {
        statement_ = &statement;
        const std::string_view text = statement.text;
        if (text == "{") {
            scopes_.emplace_back();
        } else if (text == "}") {
            scopes_.pop_back();
        } else if (text.back() == ':') {
            body_->labels[text.substr(0, text.size() - 1)] = std::uint32_t(function_.code.size());
        } else if (text[0] == '.') {
            directive(text);
        } else {
            instruction(text);
        }
    }

    // ---- declarations

    void directive(std::string_view text) {
        if (is_place(text)) return place(*statement_);
        if (text.starts_with(".pragma")) return;
        if (text.starts_with(".reg")) return declare_registers(trimmed(text.substr(4)));
        if (text.starts_with(".param")) return declare_parameter(text.substr(6));
        if (text.starts_with(".local")) return declare_local(text.substr(6));
        if (text.starts_with(".shared")) {
            declare_shared(variable_of(text.substr(7)));
            return;
        }
        wrong("an unknown directive");
    }

    // ---- places

    void place(const Statement& statement) {
        std::string place = "kernels.ptx:" + std::to_string(statement.line);
        if (is_place(statement.text)) {
            unsigned file = 0, line = 0;
            const char* const end = statement.text.data() + statement.text.size();
            const char* const next = std::from_chars(statement.text.data() + statement.text.find_first_of("0123456789"),
                                                     end, file).ptr;
            std::from_chars(next + 1, end, line);
            const auto found = module_.files.find(file);
            if (found != module_.files.end()) {
                // paths of the project, without the build folder
                const std::string_view path = found->second;
                const std::size_t folder = std::min(path.rfind("/kernels/"), path.size());
                place = std::string(path.substr(folder == path.size() ? 0 : folder + 1)) + ":" + std::to_string(line);
            }
        }
        const auto [known, is_new] = places_.try_emplace(place, std::uint32_t(function_.places.size()));
        if (is_new) function_.places.push_back(place);
        place_ = known->second;
    }

    // "[%rd1+16]": row of the base, and offset.
    std::uint32_t address(std::string_view text, Type type, Instruction& to) {
        if (text.size() < 3 || text.front() != '[' || text.back() != ']') wrong("not an address: " + std::string(text));
        text = text.substr(1, text.size() - 2);
        const std::size_t plus = text.find('+');
        if (plus != text.npos) {
            const auto offset = number(text.substr(plus + 1));
            if (!offset) wrong("not an offset of an address");
            to.immediate = std::int64_t(*offset);
        }
        return source(text.substr(0, plus), type);
    }

    // "{%f1, %f2}" or "%f1"
    static Operands elements(std::string_view text) {
        if (text[0] != '{') return {text};
        return split_operands(text.substr(1, text.size() - 2));
    }

    // ---- instructions

    void instruction(std::string_view text) {
        Instruction to;
        to.place = place_;
        if (text[0] == '@') {
            to.guard_negated = text[1] == '!';
            const std::size_t begin = 1 + to.guard_negated, end = text.find_first_of(" \t");
            to.guard = register_of(text.substr(begin, end - begin), kPredicate);
            text = trimmed(text.substr(end));
        }
        const std::size_t end = std::min(text.find_first_of(" \t"), text.size());
        const std::string_view name = text.substr(0, end);
        const Operands operands = split_operands(text.substr(end));
        Mnemonic mnemonic;
        for (std::size_t begin = 0; begin <= name.size();) {
            const std::size_t dot = std::min(name.find('.', begin), name.size());
            mnemonic.push_back(name.substr(begin, dot - begin));
            begin = dot + 1;
        }
        if (branch(mnemonic, operands, to) || memory(mnemonic, operands, to) || of_warp(mnemonic, operands, to) ||
            of_vector(mnemonic, operands, to) || of_registers(mnemonic, operands, to))
            return;
        wrong("an unknown instruction");
    }
    void add(const Instruction& instruction) { function_.code.push_back(instruction); }

    bool branch(const Mnemonic& mnemonic, const Operands& operands, Instruction& to) {
        const auto at = std::uint32_t(function_.code.size());
        if (mnemonic[0] == "bra") {
            to.kind = Instruction::Kind::branch;
            body_->jumps.emplace_back(at, operands.at(0));
        } else if (mnemonic[0] == "ret" && body_->is_called) {
            to.kind = Instruction::Kind::branch;
            body_->returns.push_back(at);
        } else if (mnemonic[0] == "ret" || mnemonic[0] == "exit") {
            to.kind = Instruction::Kind::end;
        } else if (mnemonic[0] == "call" && to.guard == kNone) {
            call(operands);
            return true;
        } else {
            return false;
        }
        add(to);
        return true;
    }

    // "call.uni (retval0), name, (param0, param1)"
    void call(const Operands& operands) {
        const auto list = [](std::string_view text) { return split_operands(text.substr(1, text.size() - 2)); };
        const bool has_result = operands.at(0)[0] == '(';
        const std::string_view name = operands.at(has_result);
        const auto found = module_.functions.find(name);
        if (found == module_.functions.end()) wrong("no function " + std::string(name));
        const FunctionText& called = found->second;
        const Operands results = has_result ? list(operands[0]) : Operands{};
        const Operands arguments = operands.size() > has_result + 1u ? list(operands[has_result + 1u]) : Operands{};
        if (results.size() != called.results.size() || arguments.size() != called.parameters.size() || depth_ > 8)
            wrong("a call that does not match the function");
        std::map<std::string_view, Register> rows;
        for (std::size_t i = 0; i < results.size(); ++i)
            rows[called.results[i].name] = register_named(results[i]);
        for (std::size_t i = 0; i < arguments.size(); ++i)
            rows[called.parameters[i].name] = register_named(arguments[i]);
        auto outer = std::exchange(scopes_, {std::move(rows)});
        ++depth_;
        const Statement* const statement = statement_;
        decode_body(called, 0);
        statement_ = statement;
        --depth_;
        scopes_ = std::move(outer);
    }

    // ld and st, .space, modifiers that do not change values, .v2 or .v4, .type
    bool memory(const Mnemonic& mnemonic, const Operands& operands, Instruction& to) {
        const bool loads = mnemonic[0] == "ld";
        if (!loads && mnemonic[0] != "st") return false;
        static const std::map<std::string_view, Space> spaces{{"global", Space::global}, {"shared", Space::shared},
                                                              {"local", Space::local}, {"param", Space::parameter}};
        const auto space = spaces.find(mnemonic.size() > 2 ? mnemonic[1] : "");
        const auto type = type_named(mnemonic.back());
        if (space == spaces.end() || !type || operands.size() != 2) return false;
        for (std::size_t i = 2; i + 1 < mnemonic.size(); ++i)
            if (const auto& word = mnemonic[i]; word != "v2" && word != "v4" && word != "cs" && word != "nc" &&
                                                word != "cg" && word != "L1::no_allocate")
                return false;
        const Operands values = elements(operands[loads ? 0 : 1]);
        const std::string_view where = operands[loads ? 1 : 0];
        // parameters of a call are rows
        const std::string_view named = trimmed(where.substr(1, where.find_first_of("+]") - 1));
        if (space->second == Space::parameter && find_register(named) && named[0] != '%')
            return parameter_of_call(loads, *type, values.at(0), named, to);
        if (space->second == Space::parameter && !loads) return false;
        const Type address_type = space->second == Space::shared ? kB32 : kB64;
        to.count = std::uint8_t(values.size());
        to.row[0] = address(where, address_type, to);
        Type widest{'b', 0};
        for (std::size_t i = 0; i < values.size(); ++i) {
            const bool is_register = find_register(values[i]) || values[i] == "_";
            const Register& value = is_register ? register_named(values[i])
                                                : Register{source(values[i], *type), *type};
            to.row.at(i + 1) = value.row;
            if (values[i] != "_") widest = value.type;
        }
        to.handler = loads ? load_of(space->second, *type, widest.bytes(), to.count)
                           : store_of(space->second, *type, widest.bytes(), to.count);
        if (!to.handler) return false;
        add(to);
        return true;
    }
    bool parameter_of_call(bool loads, Type type, std::string_view value, std::string_view name, Instruction& to) {
        const auto move = operation_of({"mov", type.bits == 64 ? "b64" : "b32"});
        const Type bits{'b', type.bits};
        to.row[0] = loads ? register_of(value, bits) : register_of(name, bits);
        to.row[1] = loads ? register_of(name, bits) : source(value, bits);
        to.handler = move->handler;
        add(to);
        return true;
    }

    bool of_warp(const Mnemonic& mnemonic, const Operands& operands, Instruction& to) {
        using Kind = Instruction::Kind;
        const std::string_view op = mnemonic[0];
        const auto is = [&](std::initializer_list<std::string_view> words) {
            return std::ranges::equal(mnemonic, words);
        };
        if (is({"shfl", "sync", "bfly", "b32"})) {
            to.kind = Kind::with_lanes;
            const std::size_t bar = operands.at(0).find('|');
            to.row[1] = register_of(operands[0].substr(0, bar), kB32);
            to.row[2] = bar == std::string_view::npos ? kNone : register_of(operands[0].substr(bar + 1), kPredicate);
            to.row[3] = source(operands.at(1), kB32);
            to.row[4] = source(operands.at(2), kB32);
            to.row[5] = source(operands.at(3), kB32);
            to.row[0] = source(operands.at(4), kB32);
            to.handler = shuffle;
        } else if (is({"bar", "warp", "sync"})) {
            to.kind = Kind::with_lanes;
            to.row[0] = source(operands.at(0), kB32);
            to.handler = do_nothing;
        } else if (is({"bar", "sync"}) || is({"barrier", "sync"})) {
            if (operands.size() != 1 || operands[0] != "0") return false;  // barriers of some warps only
            to.kind = Kind::block_barrier;
            to.handler = do_nothing;
        } else if (op == "mma") {
            if (!is({"mma", "sync", "aligned", "m16n8k16", "row", "col", "f32", "bf16", "bf16", "f32"})) return false;
            to.kind = Kind::with_warp;
            to.handler = mma_m16n8k16_bf16;
            std::size_t next = 0;
            for (const std::string_view group : operands)
                for (const std::string_view one : elements(group)) to.row.at(next++) = source(one, kB32);
        } else if (op == "ldmatrix") {
            const bool transposed = is({"ldmatrix", "sync", "aligned", "m8n8", "x4", "trans", "shared", "b16"});
            if (!transposed && !is({"ldmatrix", "sync", "aligned", "m8n8", "x4", "shared", "b16"})) return false;
            to.kind = Kind::with_warp;
            to.handler = ldmatrix_of(transposed);
            const Operands values = elements(operands.at(0));
            if (values.size() != 4) return false;
            to.row[0] = address(operands.at(1), kB32, to);
            for (std::size_t i = 0; i < 4; ++i) to.row.at(i + 1) = register_of(values[i], kB32);
        } else if (is({"cp", "async", "cg", "shared", "global"})) {
            if (operands.size() < 3 || operands[2] != "16") return false;
            Instruction shared;
            to.row[0] = address(operands[0], kB32, shared);
            to.row[1] = address(operands[1], kB64, to);
            to.row[2] = source(operands.size() == 4 ? operands[3] : operands[2], kB32);
            if (shared.immediate != to.immediate && shared.immediate != 0 && to.immediate != 0) return false;
            to.row[3] = constant(std::uint64_t(shared.immediate), kB32);
            to.handler = copy_async;
        } else if (is({"cp", "async", "wait_all"})) {
            to.handler = wait_for_copies;
        } else {
            return false;
        }
        if (!to.handler) return false;
        add(to);
        return true;
    }

    // mov between a register and the halves of its bits: "mov.b32 %r1, {%rs1, %rs2}"
    bool of_vector(const Mnemonic& mnemonic, const Operands& operands, Instruction& to) {
        if (mnemonic[0] != "mov" || operands.size() != 2) return false;
        const bool splits = operands[0][0] == '{', joins = operands[1][0] == '{';
        if (splits == joins) return false;
        const Operands halves = elements(operands[joins]);
        const auto type = type_named(mnemonic.back());
        if (halves.size() != 2 || !type || (type->bits != 32 && type->bits != 64)) return false;
        const Type half{'b', type->bits / 2};
        if (joins) {
            to.row[0] = register_of(operands[0], *type);
            for (const int i : {0, 1}) to.row[std::size_t(i) + 1] = source(halves[std::size_t(i)], half);
        } else {
            to.row[0] = source(operands[1], *type);
            for (const int i : {0, 1}) to.row[std::size_t(i) + 1] = register_of(halves[std::size_t(i)], half);
        }
        to.handler = halves_of(type->bits, joins);
        add(to);
        return true;
    }

    bool of_registers(const Mnemonic& mnemonic, const Operands& operands, Instruction& to) {
        // a predicate can be set to a constant
        if (mnemonic[0] == "mov" && mnemonic.back() == "pred" && find_register(operands.at(1)) == nullptr) {
            const auto value = number(operands[1]);
            if (!value) return false;
            to.row[0] = register_of(operands[0], kPredicate);
            to.row[1] = constant(*value ? 0xffffffff : 0, kB32);
            to.handler = operation_of({"mov", "pred"})->handler;
            add(to);
            return true;
        }
        const auto operation = operation_of(mnemonic);
        if (!operation || !operation->handler || operands.size() != operation->from.size() + 1) return false;
        to.row[0] = register_of(operands[0], operation->to);
        for (std::size_t i = 0; i < operation->from.size(); ++i)
            to.row.at(i + 1) = source(operands[i + 1], operation->from[i]);
        to.handler = operation->handler;
        add(to);
        return true;
    }

    const FunctionText& text_;
    Body* body_ = nullptr;
    std::uint32_t place_ = 0;
    int depth_ = 0;
    std::map<std::string, std::uint32_t> places_;
};

}  // namespace

Function decode(const Module& module, const FunctionText& text) { return Decoder(module, text).decode(); }

}  // namespace stand_in::ptx
