/* A libnvidia-ml.so.1 without hardware: every answer stands in the file that NVML_SCRIPT names.
 *
 * A line is a key and a value: "!N" for the error N, "?" for a call that hangs until the file says
 * something else, and makes a file with the suffix ".hangs". Keys are "init", "count", and of GPU 0
 * and its MIG instance 1: "0.power 250000", "0/1.memory_used 42". A key that is not there is not
 * supported. The file is read again when it has changed.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NOT_SUPPORTED 3
#define INSUFFICIENT_SIZE 7
#define UNINITIALIZED 1
#define MAX_LINES 4096
#define MAX_GPUS 16
#define MAX_PARTS 7

typedef struct { int gpu, part; } Device;
typedef struct { char key[64], value[128]; } Line;

static Line lines[MAX_LINES];
static int line_count, users;
static struct timespec read_at;
static off_t read_size = -1;
static Device gpus[MAX_GPUS], parts[MAX_GPUS][MAX_PARTS];

static void read_script(void) {
  const char *path = getenv("NVML_SCRIPT");
  struct stat now;
  if (!path || stat(path, &now)) return;
  if (now.st_size == read_size && now.st_mtim.tv_sec == read_at.tv_sec &&
      now.st_mtim.tv_nsec == read_at.tv_nsec) return;
  FILE *file = fopen(path, "r");
  if (!file) return;
  line_count = 0;
  while (line_count < MAX_LINES &&
         fscanf(file, " %63s %127[^\n]", lines[line_count].key, lines[line_count].value) == 2)
    line_count++;
  fclose(file);
  read_at = now.st_mtim;
  read_size = now.st_size;
}

static const char *find(const char *key) {
  read_script();
  for (int i = 0; i < line_count; i++)
    if (!strcmp(lines[i].key, key)) return lines[i].value;
  return NULL;
}

static void hang(void) {
  char path[4096];
  snprintf(path, sizeof path, "%s.hangs", getenv("NVML_SCRIPT"));
  FILE *file = fopen(path, "w");
  if (file) fclose(file);
  usleep(1000);
}

static int text(const Device *device, const char *word, const char **found) {
  char key[64];
  if (!users) return UNINITIALIZED;
  if (device && device->part >= 0)
    snprintf(key, sizeof key, "%d/%d.%s", device->gpu, device->part, word);
  else if (device)
    snprintf(key, sizeof key, "%d.%s", device->gpu, word);
  else
    snprintf(key, sizeof key, "%s", word);
  while ((*found = find(key)) && **found == '?') hang();
  if (!*found) return NOT_SUPPORTED;
  return **found == '!' ? atoi(*found + 1) : 0;
}

static int number(const Device *device, const char *word, unsigned long long *found) {
  const char *value;
  int error = text(device, word, &value);
  if (!error) *found = strtoull(value, NULL, 10);
  return error;
}

static int small(const Device *device, const char *word, unsigned *found) {
  unsigned long long value = 0;
  int error = number(device, word, &value);
  if (!error) *found = (unsigned)value;
  return error;
}

static int copy(const Device *device, const char *word, char *into, unsigned size) {
  const char *value;
  int error = text(device, word, &value);
  if (!error) snprintf(into, size, "%s", value);
  return error;
}

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  users++;
  const char *value;
  int error = text(NULL, "init", &value);
  if (error && error != NOT_SUPPORTED) { users--; return error; }
  return 0;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) {
  if (!users) return UNINITIALIZED;
  users--;
  return 0;
}
const char *nvmlErrorString(int error) { (void)error; return "scripted"; }

int nvmlDeviceGetCount_v2(unsigned *count) { return small(NULL, "count", count); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
  unsigned unused;
  if (index >= MAX_GPUS) return 2;
  gpus[index] = (Device){(int)index, -1};
  *device = &gpus[index];
  int error = small(*device, "handle", &unused);
  return error == NOT_SUPPORTED ? 0 : error;
}
int nvmlDeviceGetUUID(Device *d, char *into, unsigned size) { return copy(d, "uuid", into, size); }
int nvmlDeviceGetName(Device *d, char *into, unsigned size) { return copy(d, "name", into, size); }

int nvmlDeviceGetMigMode(Device *d, unsigned *current, unsigned *pending) {
  *pending = 0;
  return small(d, "mig", current);
}
int nvmlDeviceGetMaxMigDeviceCount(Device *d, unsigned *count) {
  (void)d;
  *count = MAX_PARTS;
  return 0;
}
int nvmlDeviceGetMigDeviceHandleByIndex(Device *d, unsigned index, Device **part) {
  const char *unused;
  parts[d->gpu][index] = (Device){d->gpu, (int)index};
  *part = &parts[d->gpu][index];
  return text(*part, "uuid", &unused) ? 6 : 0;
}
int nvmlDeviceGetGpuInstanceId(Device *d, unsigned *id) { return small(d, "gi", id); }
int nvmlDeviceGetComputeInstanceId(Device *d, unsigned *id) { return small(d, "ci", id); }

int nvmlDeviceGetUtilizationRates(Device *d, unsigned *rates) {
  rates[1] = 0;
  return small(d, "utilization", rates);
}
int nvmlDeviceGetMemoryInfo(Device *d, unsigned long long *memory) { /* total, free, used */
  unsigned long long reserved = 0;
  int error = number(d, "memory_used", &memory[2]);
  if (!error) error = number(d, "memory_total", &memory[0]);
  number(d, "memory_reserved", &reserved);
  memory[2] += reserved; /* this version counts it as used */
  memory[1] = memory[0] - memory[2];
  return error;
}
#ifndef OLD_DRIVER
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
int nvmlDeviceGetMemoryInfo_v2(Device *d, Memory *memory) {
  int error = number(d, "memory_reserved", &memory->reserved);
  if (!error) error = number(d, "memory_used", &memory->used);
  if (!error) error = number(d, "memory_total", &memory->total);
  if (error) return error;
  memory->free = memory->total - memory->reserved - memory->used;
  return 0;
}
#endif
int nvmlDeviceGetPowerUsage(Device *d, unsigned *mw) { return small(d, "power", mw); }
int nvmlDeviceGetEnforcedPowerLimit(Device *d, unsigned *mw) { return small(d, "power_limit", mw); }
int nvmlDeviceGetTotalEnergyConsumption(Device *d, unsigned long long *mj) {
  return number(d, "energy", mj);
}
int nvmlDeviceGetTemperature(Device *d, unsigned sensor, unsigned *celsius) {
  (void)sensor;
  return small(d, "temperature", celsius);
}
int nvmlDeviceGetClockInfo(Device *d, unsigned clock, unsigned *mhz) {
  return small(d, clock == 1 ? "sm_clock" : "memory_clock", mhz);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *d, unsigned long long *bits) {
  return number(d, "throttle", bits);
}
int nvmlDeviceGetTotalEccErrors(Device *d, unsigned kind, unsigned counter,
                                unsigned long long *count) {
  (void)counter;
  return number(d, kind ? "ecc_uncorrected" : "ecc_corrected", count);
}

#ifndef OLD_DRIVER
typedef struct {
  unsigned field, scope;
  long long timestamp, latency;
  unsigned type;
  int error;
  unsigned long long value;
} Field;
int nvmlDeviceGetFieldValues(Device *d, int count, Field *fields) {
  for (int i = 0; i < count; i++) {
    char word[32];
    snprintf(word, sizeof word, "field_%u", fields[i].field);
    fields[i].error = number(d, word, &fields[i].value);
  }
  return 0;
}

typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Process;
int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *count, Process *found) {
  unsigned long long used;
  int error = number(d, "process_memory", &used);
  if (error) return error;
  unsigned room = *count;
  *count = 2;
  if (room < 2) return INSUFFICIENT_SIZE;
  unsigned pid = 0;
  small(d, "process_pid", &pid);
  found[0] = (Process){1, 12345, 0, 0};
  found[1] = (Process){pid, used, 0, 0};
  return 0;
}
#endif
