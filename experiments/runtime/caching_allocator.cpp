// PyTorch's allocator for CPUs, which keeps large blocks that were freed for the next tensors of about their size. The
// C library maps each of them anew and gives it back, and every page of it is then cleared at its first use.
//
// Blocks in use and blocks kept are together never more than were in use at once, so the process needs no more memory.
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>
#include <pthread.h>

#include <algorithm>
#include <list>
#include <mutex>
#include <unordered_map>

namespace {

struct Block {
    void *data;
    size_t size;
};

class CachingAllocator final : public c10::Allocator {
  public:
    explicit CachingAllocator(size_t large) : large(large) {}

    c10::DataPtr allocate(size_t size) override {
        std::unique_lock<std::mutex> held(mutex, std::defer_lock);
        void *data = size < large ? from_system(size, held) : take(size, held);
        c10::profiledCPUMemoryReporter().New(data, size);
        return {data, data, raw_deleter(), c10::Device(c10::DeviceType::CPU)};
    }

    c10::DeleterFnPtr raw_deleter() const override;

    void copy_data(void *to, const void *from, size_t size) const override { default_copy_data(to, from, size); }

    void give(void *data) {
        c10::profiledCPUMemoryReporter().Delete(data);
        if (malloc_usable_size(data) < large) return c10::free_cpu(data);  // of most tensors, without a lock
        std::lock_guard<std::mutex> held(mutex);
        const auto found = used.find(data);
        if (found == used.end()) return c10::free_cpu(data);  // a little smaller, or from before this allocator
        kept.push_back({data, found->second});
        kept_bytes += found->second;
        used_bytes -= found->second;
        used.erase(found);
    }

    // Gives what is kept back to the system; from now on no more is kept than is needed at once from now on.
    void release() {
        std::lock_guard<std::mutex> held(mutex);
        keep_at_most(0);
        most_bytes = used_bytes;
    }

    int64_t bytes_kept() {
        std::lock_guard<std::mutex> held(mutex);
        return kept_bytes;
    }

    std::mutex mutex;  // of what follows

  private:
    const size_t large;
    std::list<Block> kept;  // the longest unused first
    std::unordered_map<void *, size_t> used;
    size_t kept_bytes = 0, used_bytes = 0, most_bytes = 0;

    void *take(size_t size, std::unique_lock<std::mutex> &held) {
        held.lock();
        auto best = kept.end();
        for (auto block = kept.begin(); block != kept.end(); ++block)
            if (block->size >= size && (best == kept.end() || block->size < best->size)) best = block;
        Block block{nullptr, size};
        if (best != kept.end() && best->size <= size + size / 8) {
            block = *best;
            kept_bytes -= block.size;
            kept.erase(best);
        } else {
            const size_t needed = used_bytes + size;
            keep_at_most(std::max(most_bytes, needed) - needed);
            block.data = from_system(size, held);
        }
        used[block.data] = block.size;
        used_bytes += block.size;
        most_bytes = std::max(most_bytes, used_bytes);
        return block.data;
    }

    void keep_at_most(size_t bytes) {
        while (kept_bytes > bytes) {
            kept_bytes -= kept.front().size;
            c10::free_cpu(kept.front().data);
            kept.pop_front();
        }
    }

    // Where the system has no more, it gets what is kept, and is asked again.
    void *from_system(size_t size, std::unique_lock<std::mutex> &held) {
        try {
            return c10::alloc_cpu(size);
        } catch (const std::exception &) {
            if (!held) held.lock();
            keep_at_most(0);
            return c10::alloc_cpu(size);
        }
    }
};

CachingAllocator *allocator = nullptr;  // for good: tensors may outlive all else

void give_back(void *data) {
    if (data) allocator->give(data);
}

c10::DeleterFnPtr CachingAllocator::raw_deleter() const { return &give_back; }

}  // namespace

extern "C" {

// From now on tensors of at least `large` bytes are taken from blocks that are kept. Once in a process.
void install_caching_allocator(int64_t large) {
    allocator = new CachingAllocator(large);
    // A process that forks while another thread holds the lock would leave it locked in the child.
    pthread_atfork([] { allocator->mutex.lock(); }, [] { allocator->mutex.unlock(); },
                   [] { allocator->mutex.unlock(); });
    c10::SetCPUAllocator(allocator);
}

void release_kept_blocks() { allocator->release(); }

int64_t bytes_kept() { return allocator->bytes_kept(); }
}
