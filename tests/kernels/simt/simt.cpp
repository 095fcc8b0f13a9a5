// Runs a GPU kernel on the CPU, one block after the other.  The threads of a block are fibers; which one runs next is
// drawn from a seed, and they change places only at barriers and shuffles.  So a thread runs as far ahead of the others
// as the kernel lets it, and what it reads too early is not there yet: shared memory starts every block as NaN.
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "simt.h"

#if defined(__SANITIZE_ADDRESS__)
#define SIMT_SANITIZED 1
#endif

namespace simt {

constexpr unsigned LANES = 32;
constexpr size_t STACK_BYTES = 256 << 10;

[[noreturn]] void fail(const char* what) {
    fprintf(stderr, "simt: %s\n", what);
    exit(3);
}

// Threads that wait for each other: a SIMD group, or a block.
struct Meeting {
    unsigned members = 0, arrived = 0;
    unsigned long round = 0;
};

struct Fiber {
    ucontext_t context;
    jmp_buf where;
    std::unique_ptr<char[]> stack;
    bool started = false, done = false;
    Meeting* meeting = nullptr;
    unsigned long round = 0;
};

struct Machine {
    std::vector<Fiber> fibers;
    std::vector<Meeting> groups;
    std::vector<unsigned> lane_values;  // two rounds of each SIMD group: nobody is more than one ahead
    Meeting block;
    ucontext_t scheduler;
    jmp_buf scheduler_where;
    unsigned running = 0;
    Index block_index{}, block_size{};
    void** arguments = nullptr;
    std::mt19937 random;
};

Machine machine;

// setjmp leaves the signal mask alone, so it is many times faster than swapcontext; AddressSanitizer knows only the latter.
void leave() {
    Fiber& fiber = machine.fibers[machine.running];
#ifdef SIMT_SANITIZED
    swapcontext(&fiber.context, &machine.scheduler);
#else
    if (_setjmp(fiber.where) == 0) _longjmp(machine.scheduler_where, 1);
#endif
}

void enter(Fiber& fiber) {
#ifdef SIMT_SANITIZED
    swapcontext(&machine.scheduler, &fiber.context);
#else
    if (_setjmp(machine.scheduler_where) != 0) return;
    if (fiber.started) _longjmp(fiber.where, 1);
    fiber.started = true;
    setcontext(&fiber.context);
#endif
}

void start() {
    simt_kernel(machine.arguments);
    machine.fibers[machine.running].done = true;
    leave();
}

void meet(Meeting& meeting) {
    Fiber& fiber = machine.fibers[machine.running];
    if (++meeting.arrived == meeting.members) {
        meeting.arrived = 0;
        meeting.round++;
    } else {
        fiber.meeting = &meeting;
        fiber.round = meeting.round;
        leave();
        return;
    }
    fiber.meeting = nullptr;
    leave();  // the last to arrive is not the first to go on
}

void barrier() {
    meet(machine.block);
}

unsigned shuffle_xor(unsigned value, unsigned distance) {
    const unsigned group = machine.running / LANES, lane = machine.running % LANES;
    unsigned* values = &machine.lane_values[(group * 2 + machine.groups[group].round % 2) * LANES];
    values[lane] = value;
    if ((lane ^ distance) >= LANES) fail("a shuffle leaves its SIMD group");
    meet(machine.groups[group]);
    return values[lane ^ distance];
}

Index block_index() {
    return machine.block_index;
}

Index thread_index() {
    const unsigned at = machine.running, width = machine.block_size.x;
    return {at % width, at / width, 0};
}

bool ready(const Fiber& fiber) {
    return !fiber.done && (fiber.meeting == nullptr || fiber.meeting->round != fiber.round);
}

void run_block() {
    const unsigned threads = unsigned(machine.fibers.size());
    machine.block = {threads, 0, 0};
    machine.groups.assign((threads + LANES - 1) / LANES, Meeting{});
    for (unsigned i = 0; i < threads; i++) machine.groups[i / LANES].members++;
    machine.lane_values.assign(machine.groups.size() * 2 * LANES, 0x7fc00000u);
    for (Fiber& fiber : machine.fibers) {
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = STACK_BYTES;
        fiber.context.uc_link = nullptr;
        fiber.started = fiber.done = false;
        fiber.meeting = nullptr;
        makecontext(&fiber.context, start, 0);
    }
    std::vector<unsigned> waiting;
    for (unsigned left = threads; left > 0;) {
        waiting.clear();
        for (unsigned i = 0; i < threads; i++)
            if (ready(machine.fibers[i])) waiting.push_back(i);
        if (waiting.empty()) fail("threads wait for each other at different barriers or shuffles");
        // Every thread that can run does so once before the next draw; any order of these is possible.
        std::shuffle(waiting.begin(), waiting.end(), machine.random);
        // One time in two a few threads run far ahead of the others instead.
        if (machine.random() % 2) waiting.resize(1 + machine.random() % waiting.size());
        for (unsigned i : waiting) {
            machine.running = i;
            enter(machine.fibers[i]);
            left -= machine.fibers[i].done;
        }
    }
}

}  // namespace simt

extern "C" char __start_simt_shared[], __stop_simt_shared[];

namespace simt {

// grid: blocks, each of `block` threads
void launch(void** arguments, Index grid, Index block, unsigned seed) {
    machine.arguments = arguments;
    machine.block_size = block;
    machine.random.seed(seed);
    machine.fibers.resize(block.x * block.y * block.z);
    for (Fiber& fiber : machine.fibers)
        if (fiber.stack == nullptr) fiber.stack.reset(new char[STACK_BYTES]);
    std::vector<Index> blocks;
    for (unsigned y = 0; y < grid.y; y++)
        for (unsigned x = 0; x < grid.x; x++) blocks.push_back({x, y, 0});
    std::shuffle(blocks.begin(), blocks.end(), machine.random);
    for (const Index& each : blocks) {
        memset(__start_simt_shared, 0xff, size_t(__stop_simt_shared - __start_simt_shared));
        machine.block_index = each;
        run_block();
    }
}

}  // namespace simt

static unsigned read_number(FILE* file) {
    unsigned value;
    if (fread(&value, 4, 1, file) != 1) simt::fail("the file of launches ends early");
    return value;
}

// Reads launches from one file, runs them, and writes every output to another.  Numbers are uint32.
//   launches, then each: grid x, grid y, block, seed, output bytes, arrays, then per array its bytes and itself
// The output is the last argument.  Buffers have exactly their size, so that a sanitizer sees what reads past them.
int main(int, char** argv) {
    FILE* in = fopen(argv[1], "rb");
    FILE* out = fopen(argv[2], "wb");
    if (in == nullptr || out == nullptr) simt::fail("cannot open the files");
    for (unsigned left = read_number(in); left > 0; left--) {
        const unsigned x = read_number(in), y = read_number(in), block = read_number(in), seed = read_number(in);
        const unsigned output_bytes = read_number(in), arrays = read_number(in);
        std::vector<void*> arguments;
        for (unsigned i = 0; i < arrays; i++) {
            const unsigned bytes = read_number(in);
            arguments.push_back(malloc(bytes));
            if (fread(arguments.back(), 1, bytes, in) != bytes) simt::fail("the file of launches ends early");
        }
        arguments.push_back(malloc(output_bytes));
        memset(arguments.back(), 0xff, output_bytes);  // NaN: a row that nobody writes shows
        simt::launch(arguments.data(), {x, y, 1}, {block, 1, 1}, seed);
        fwrite(arguments.back(), 1, output_bytes, out);
        for (void* each : arguments) free(each);
    }
    fclose(out);
    return 0;
}
