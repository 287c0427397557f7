/* A stand-in for NVIDIA's management library, where there is no driver: two devices, as busy as it is told.
   The calls are those of nvml.h; the second device fails where SKY_TEST_LOST is set, and the second version of
   what tells of memory where SKY_TEST_OLD_DRIVER is. */
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned int gpu, memory; } utilization;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory_v2;
static const unsigned long long GIB = 1ull << 30;
static char devices[2];

static int number(void *device) { return (int)((char *)device - devices); }
static int lost(void *device) { return number(device) == 1 && getenv("SKY_TEST_LOST") != NULL; }
static int copy(const char *from, char *to, unsigned int size) {
    if (strlen(from) >= size) return 7; /* insufficient size */
    strcpy(to, from);
    return 0;
}

int nvmlInit_v2(void) { return getenv("SKY_TEST_NO_DRIVER") != NULL ? 9 /* driver not loaded */ : 0; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    if (index > 1) return 2; /* invalid argument */
    *device = &devices[index];
    return 0;
}
int nvmlDeviceGetName(void *device, char *name, unsigned int size) { return copy("NVIDIA A100-SXM4-80GB", name, size); }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int size) {
    return copy(number(device) ? "GPU-00000001-5b9c-4d0e-8f1a-2b3c4d5e6f70"
                               : "GPU-00000000-5b9c-4d0e-8f1a-2b3c4d5e6f70", uuid, size);
}
int nvmlDeviceGetUtilizationRates(void *device, utilization *use) {
    if (lost(device)) return 15; /* GPU is lost */
    use->gpu = number(device) ? 25 : 90;
    use->memory = 10;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, memory *found) {
    if (lost(device)) return 15;
    found->total = 80 * GIB;
    found->used = (number(device) ? 5 : 60) * GIB;
    found->used += GIB; /* what the driver keeps for itself counts in this version */
    found->free = found->total - found->used;
    return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *found) {
    if (getenv("SKY_TEST_OLD_DRIVER") != NULL) return 3; /* not supported */
    if (found->version != (sizeof(memory_v2) | 2u << 24)) return 25; /* argument version mismatch */
    if (lost(device)) return 15;
    found->total = 80 * GIB;
    found->reserved = GIB;
    found->used = (number(device) ? 5 : 60) * GIB;
    found->free = found->total - found->reserved - found->used;
    return 0;
}
