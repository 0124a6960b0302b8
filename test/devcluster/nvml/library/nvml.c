// A stand-in for NVIDIA's libnvidia-ml.so.1: the calls that a health monitor makes, answered from what the node's
// server (nvml.go) says of its pretended GPUs over the unix socket that lies next to this file. It is found and
// loaded by dlopen as the real one is, so what is tested is the program that ships. A driver that hangs is a call
// that does not return.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <libgen.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, RESET_REQUIRED = 16, UNKNOWN = 999 };
enum { LINKS = 4, LANES = 16, GENERATION = 5 };
enum { MAX_GPUS = 64, MAX_EVENTS = 64, RECOVERY_ACTION = 230, XID_EVENT = 8, UNSIGNED_INT = 1 };

typedef struct { int index, lost, reset, recovery, pending, failed, nameless, links, lanes, linksUnread; unsigned long long ecc; char uuid[80], pci[20]; } gpu;
typedef struct { char legacy[16]; unsigned domain, bus, device, deviceId, subsystemId; char busId[32]; } pciInfo;
typedef struct { unsigned id, scope; long long timestamp, latency; unsigned type, ret; unsigned long long value; } fieldValue;
typedef struct { gpu *device; unsigned long long type, data; unsigned gpuInstance, computeInstance; } eventData;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int fd = -1, count, hang, ended;
static gpu gpus[MAX_GPUS];
static struct { int gpu, xid; } events[MAX_EVENTS];
static int first, queued, listening;
static char buffer[65536];
static size_t filled;

static void say(char *line) {
	gpu g;
	int i, xid;
	memset(&g, 0, sizeof g);
	if (sscanf(line, "gpu %d %79s %19s %d %d %d %d %d %llu %d %d %d %d", &g.index, g.uuid, g.pci, &g.lost, &g.reset, &g.recovery, &g.pending, &g.failed, &g.ecc, &g.nameless, &g.links, &g.lanes, &g.linksUnread) == 13) {
		if (g.index >= 0 && g.index < MAX_GPUS) gpus[g.index] = g;
		if (g.index >= count && g.index < MAX_GPUS) count = g.index + 1;
	} else if (sscanf(line, "hang %d", &i) == 1) {
		hang = i;
	} else if (sscanf(line, "xid %d %d", &i, &xid) == 2 && listening && queued < MAX_EVENTS) {
		events[(first + queued) % MAX_EVENTS].gpu = i;
		events[(first + queued++) % MAX_EVENTS].xid = xid;
	}
}

// hear takes in what the server has said; wait lets it block until it says something.
static void hear(int wait) {
	ssize_t n;
	char *end;
	while (!ended && (n = recv(fd, buffer + filled, sizeof buffer - filled - 1, wait ? 0 : MSG_DONTWAIT)) != -1) {
		if (n == 0) { ended = 1; return; }
		wait = 0;
		filled += n;
		buffer[filled] = 0;
		while ((end = strchr(buffer, '\n'))) {
			*end = 0;
			say(buffer);
			filled -= end + 1 - buffer;
			memmove(buffer, end + 1, filled + 1);
		}
	}
}

static int enter(void) {
	pthread_mutex_lock(&lock);
	if (fd < 0) return UNINITIALIZED;
	hear(0);
	while (hang && !ended) hear(1);
	return ended ? DRIVER_NOT_LOADED : SUCCESS;
}

static int leave(int ret) { pthread_mutex_unlock(&lock); return ret; }

static int device(gpu *g) { return g->lost ? GPU_IS_LOST : g->reset ? RESET_REQUIRED : SUCCESS; }

int nvmlInit_v2(void) {
	Dl_info me;
	char path[4096];
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	pthread_mutex_lock(&lock);
	if (fd >= 0) return leave(SUCCESS);
	if (!dladdr((void *)nvmlInit_v2, &me) || !me.dli_fname) return leave(DRIVER_NOT_LOADED);
	snprintf(path, sizeof path, "%s", me.dli_fname);
	snprintf(at.sun_path, sizeof at.sun_path, "%s/gpus.sock", dirname(path));
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof at) || write(fd, "watch\n", 6) != 6) {
		if (fd >= 0) close(fd);
		fd = -1;
		return leave(DRIVER_NOT_LOADED);
	}
	count = hang = ended = filled = queued = listening = 0;
	hear(1);
	while (hang && !ended) hear(1);
	return leave(SUCCESS);
}

int nvmlInit(void) { return nvmlInit_v2(); }

int nvmlShutdown(void) {
	pthread_mutex_lock(&lock);
	if (fd >= 0) close(fd);
	fd = -1;
	return leave(SUCCESS);
}

const char *nvmlErrorString(int ret) { (void)ret; return "an error of the stand-in"; }

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
	snprintf(version, length, "570.0-holdfast-dev");
	return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *n) {
	int ret = enter();
	*n = count;
	return leave(ret);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned i, gpu **out) {
	int ret = enter();
	if (ret == SUCCESS && i >= (unsigned)count) ret = INVALID_ARGUMENT;
	if (ret == SUCCESS && gpus[i].nameless) ret = GPU_IS_LOST;
	if (ret == SUCCESS) *out = &gpus[i];
	return leave(ret);
}

int nvmlDeviceGetUUID(gpu *g, char *out, unsigned length) {
	int ret = enter();
	snprintf(out, length, "%s", g->uuid);
	return leave(ret);
}

int nvmlDeviceGetPciInfo_v3(gpu *g, pciInfo *out) {
	int ret = enter();
	memset(out, 0, sizeof *out);
	sscanf(g->pci, "%x:%x:%x", &out->domain, &out->bus, &out->device);
	snprintf(out->busId, sizeof out->busId, "%08X:%02X:%02X.0", out->domain, out->bus, out->device);
	snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 0xff, out->device & 0xff);
	return leave(ret);
}

int nvmlDeviceGetTemperature(gpu *g, int sensor, unsigned *out) {
	int ret = enter();
	(void)sensor;
	*out = 40;
	return leave(ret ? ret : device(g));
}

int nvmlDeviceGetFieldValues(gpu *g, int n, fieldValue *f) {
	int ret = enter();
	for (int i = 0; i < n; i++) {
		f[i].ret = f[i].id != RECOVERY_ACTION || g->recovery < 0 ? NOT_SUPPORTED : SUCCESS;
		f[i].type = UNSIGNED_INT;
		f[i].value = g->recovery;
	}
	return leave(ret ? ret : g->lost ? GPU_IS_LOST : SUCCESS);
}

int nvmlDeviceGetRemappedRows(gpu *g, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failed) {
	int ret = enter();
	*correctable = *uncorrectable = 0;
	*pending = g->pending;
	*failed = g->failed;
	return leave(ret ? ret : device(g));
}

int nvmlDeviceGetTotalEccErrors(gpu *g, int type, int counter, unsigned long long *out) {
	int ret = enter();
	*out = type == 1 && counter == 0 ? g->ecc : 0;
	return leave(ret ? ret : device(g));
}

int nvmlDeviceGetNvLinkState(gpu *g, unsigned link, unsigned *active) {
	int ret = enter();
	*active = link < LINKS - (unsigned)g->links;
	return leave(ret ? ret : link >= LINKS ? INVALID_ARGUMENT : g->linksUnread && link == LINKS / 2 ? UNKNOWN : device(g));
}

static int lanes(gpu *g, unsigned *out, unsigned n) {
	int ret = enter();
	*out = n;
	return leave(ret ? ret : device(g));
}

int nvmlDeviceGetCurrPcieLinkWidth(gpu *g, unsigned *out) { return lanes(g, out, g->lanes ? (unsigned)g->lanes : LANES); }

int nvmlDeviceGetMaxPcieLinkWidth(gpu *g, unsigned *out) { return lanes(g, out, LANES); }

int nvmlDeviceGetCurrPcieLinkGeneration(gpu *g, unsigned *out) { return lanes(g, out, GENERATION); }

int nvmlDeviceGetMaxPcieLinkGeneration(gpu *g, unsigned *out) { return lanes(g, out, GENERATION); }

int nvmlDeviceGetPerformanceState(gpu *g, unsigned *out) { return lanes(g, out, 0); }

int nvmlEventSetCreate(void **set) { *set = &events; return SUCCESS; }

int nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }

int nvmlDeviceRegisterEvents(gpu *g, unsigned long long types, void *set) {
	int ret = enter();
	(void)g, (void)types, (void)set;
	listening = 1;
	return leave(ret);
}

static long long now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

int nvmlEventSetWait_v2(void *set, eventData *out, unsigned ms) {
	long long end = now() + ms;
	(void)set;
	for (;;) {
		int ret = enter();
		if (ret) return leave(ret);
		if (queued) {
			memset(out, 0, sizeof *out);
			out->device = &gpus[events[first].gpu];
			out->type = XID_EVENT;
			out->data = events[first].xid;
			first = (first + 1) % MAX_EVENTS;
			queued--;
			return leave(SUCCESS);
		}
		leave(SUCCESS);
		long long left = end - now();
		if (left <= 0) return TIMEOUT;
		struct pollfd p = { .fd = fd, .events = POLLIN };
		poll(&p, 1, left);
	}
}
