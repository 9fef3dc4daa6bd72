/* What PyTorch's CUDA build asks of CUDA's runtime and driver before it computes: one GPU, without memory or streams.
 *
 * Preloaded into a process, it stands before libcudart and for libcuda.so.1, so that tensors without values may be on cuda:0.
 * Anything that a GPU would have to do fails, as no other function is replaced. tests/cuda_without_driver.py builds it. */
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    int capability = atoi(getenv("CUDA_CAPABILITY"));
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, "no GPU");
    properties->major = capability / 10;
    properties->minor = capability % 10;
    properties->warpSize = 32;
    properties->multiProcessorCount = capability < 90 ? 108 : 132; /* an A100, an H100 */
    properties->totalGlobalMem = (size_t)80 << 30;
    properties->sharedMemPerBlock = 48 << 10;
    properties->sharedMemPerBlockOptin = (capability < 90 ? 163 : 227) << 10;
    properties->sharedMemPerMultiprocessor = (capability < 90 ? 164 : 228) << 10;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
    properties->l2CacheSize = (capability < 90 ? 40 : 50) << 20;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

/* Of the driver: the GPU has not been used yet, so that autograd asks for no streams. */
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    *flags = 0;
    *active = 0;
    return 0;
}
