// Runs the caching allocator of an installed CUDA build of torch without a GPU: the functions of the CUDA runtime and
// driver that it calls are defined here and only keep books. So its real decisions can be compared with the simulated ones.
//
// Usage: real_allocator CAPACITY_BYTES TOTAL_BYTES < requests; the settings come from PYTORCH_CUDA_ALLOC_CONF.
// Requests, one a line: "a ID SIZE STREAM" allocate, "f ID" free, "r ID STREAM" record a use on a stream,
// "c STREAM" everything queued on the stream is done, "e" empty the cache, "p" reset the peaks.
// Output, one line a request: address (-1 out of memory, -2 no allocation), then the allocator's statistics.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <string>
#include <unistd.h>

namespace {
struct Event {
  uint64_t stream = 0;
  uint64_t sequence = 0;
};

size_t capacity = 0, total = 0, used = 0;
uint64_t lowest = 0x7F0000000000ull;
uint64_t next_handle = 1;
std::map<uint64_t, size_t> segments, handles;
std::map<uint64_t, uint64_t> recorded, finished;

uint64_t place(size_t size) {
  constexpr size_t page = 2097152;
  lowest -= (size + page - 1) / page * page;
  return lowest;
}

CUresult reserve(CUdeviceptr* address, size_t size, size_t, CUdeviceptr, unsigned long long) {
  *address = place(size);
  return CUDA_SUCCESS;
}
CUresult create(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp*, unsigned long long) {
  if (used + size > capacity) return CUDA_ERROR_OUT_OF_MEMORY;
  used += size;
  *handle = next_handle++;
  handles[*handle] = size;
  return CUDA_SUCCESS;
}
CUresult release(CUmemGenericAllocationHandle handle) {
  used -= handles[handle];
  handles.erase(handle);
  return CUDA_SUCCESS;
}
CUresult attribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 0;
  return CUDA_SUCCESS;
}
CUresult device(CUdevice* found, int) {
  *found = 0;
  return CUDA_SUCCESS;
}
CUresult describe(CUresult, const char** text) {
  *text = "none";
  return CUDA_SUCCESS;
}
CUresult nothing() { return CUDA_SUCCESS; }
} // namespace

extern "C" {
cudaError_t cudaMalloc(void** address, size_t size) {
  if (used + size > capacity) return cudaErrorMemoryAllocation;
  used += size;
  uint64_t start = place(size);
  segments[start] = size;
  *address = reinterpret_cast<void*>(start);
  return cudaSuccess;
}
cudaError_t cudaFree(void* address) {
  auto found = segments.find(reinterpret_cast<uint64_t>(address));
  if (found == segments.end()) return cudaSuccess;
  used -= found->second;
  segments.erase(found);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* all) {
  *free = capacity - used;
  *all = total;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  memset(properties, 0, sizeof *properties);
  properties->totalGlobalMem = total;
  properties->major = 8;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* found) { *found = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { *count = 1; return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { *version = 13000; return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* most) { *least = 0; *most = -5; return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { delete reinterpret_cast<Event*>(event); return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  uint64_t key = reinterpret_cast<uint64_t>(stream);
  *reinterpret_cast<Event*>(event) = {key, ++recorded[key]};
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  auto* asked = reinterpret_cast<Event*>(event);
  return asked->sequence <= finished[asked->stream] ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "none"; }
const char* cudaGetErrorName(cudaError_t) { return "none"; }
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  static const std::map<std::string, void*> known{
      {"cuMemAddressReserve", (void*)reserve}, {"cuMemCreate", (void*)create}, {"cuMemRelease", (void*)release},
      {"cuDeviceGetAttribute", (void*)attribute}, {"cuDeviceGet", (void*)device}, {"cuGetErrorString", (void*)describe}};
  auto found = known.find(name);
  *function = found == known.end() ? (void*)nothing : found->second;
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
}

namespace c10::cuda {
namespace _internal { void setHasPrimaryContext(bool (*function)(signed char)); }
namespace detail { void init_p2p_access_cache(int64_t devices); }
bool get_fabric_access(signed char) { return false; } // asks NVML, which is not there
} // namespace c10::cuda

using namespace c10::cuda;

static uint64_t key(uint64_t stream) { return stream * 65536; } // aligned as a pointer is

static CUDAStream named(uint64_t stream) {
  return stream == 0 ? getDefaultCUDAStream(0) : getStreamFromExternal(reinterpret_cast<cudaStream_t>(key(stream)), 0);
}

static void print(long long address) {
  auto stats = CUDACachingAllocator::getDeviceStats(0);
  printf("%lld %lld %lld %lld %lld %lld %lld %lld %lld %lld\n", address, (long long)stats.allocated_bytes[0].current,
         (long long)stats.active_bytes[0].current, (long long)stats.requested_bytes[0].current,
         (long long)stats.reserved_bytes[0].current, (long long)stats.inactive_split_bytes[0].current,
         (long long)stats.allocated_bytes[0].peak, (long long)stats.reserved_bytes[0].peak,
         (long long)stats.num_alloc_retries, (long long)stats.num_ooms);
}

int main(int, char** arguments) {
  capacity = strtoull(arguments[1], nullptr, 10);
  total = strtoull(arguments[2], nullptr, 10);
  CUDACachingAllocator::init(1);
  _internal::setHasPrimaryContext([](signed char) { return true; });
  detail::init_p2p_access_cache(1);
  auto* allocator = CUDACachingAllocator::get();
  std::map<long, c10::DataPtr> live;
  std::string request;
  while (std::cin >> request) {
    long id = 0;
    size_t size = 0;
    uint64_t stream = 0;
    long long address = -2;
    if (request == "a") {
      std::cin >> id >> size >> stream;
      setCurrentCUDAStream(named(stream));
      try {
        live[id] = allocator->allocate(size);
        address = (long long)live[id].get();
      } catch (const c10::OutOfMemoryError&) {
        address = -1;
      }
    } else if (request == "f") {
      std::cin >> id;
      live.erase(id);
    } else if (request == "r") {
      std::cin >> id >> stream;
      allocator->recordStream(live[id], named(stream));
    } else if (request == "c") {
      std::cin >> stream;
      finished[key(stream)] = recorded[key(stream)];
    } else if (request == "e") {
      allocator->emptyCache({0, 0});
    } else if (request == "p") {
      allocator->resetPeakStats(0);
    }
    print(address);
  }
  fflush(stdout);
  _exit(0); // the allocator's own clean-up would look for a real device
}
