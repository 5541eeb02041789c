/* A stand-in for libnvidia-ml.so.1: NVML's ABI (nvml.h, drivers 450 to 615), no GPU, a world read from a text file.
 *
 * FAKE_NVML_SCRIPT names the file. It is read again when its time, size or inode changes (looked at once per call,
 * or once per FAKE_NVML_RECHECK_MS: cheaper, for benchmarks), so a test changes the world while an agent runs. Without it nvmlInit says
 * LIBRARY_NOT_FOUND. Lines, `#` comments; CARD is a number or `*`:
 *
 *   driver ok|unloaded|mismatch|gone      gone: every call says UNINITIALIZED until the library is started anew
 *   cards N                               must come before lines that name cards
 *   generation N                          another number makes all handles given out before stale (GPU_IS_LOST)
 *   set CARD KEY VALUE                    see `number(` and `words(` below for the keys; absent is NOT_SUPPORTED
 *   field CARD ID SCOPE VALUE             nvmlDeviceGetFieldValues; SCOPE `-` is any; VALUE `!3` is that error
 *   error CARD CALL CODE                  CALL (C name) fails; `*` is every call
 *   hang CARD CALL SECONDS                CALL takes that long, or until this line is gone
 *   process CARD PID BYTES GI CI
 *   instance CARD GI CI NAME...
 *   event SEQ CARD TYPE DATA GI CI [N]    given out N times by the event wait, once per SEQ, in rising order
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

typedef unsigned long long u64;
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, NOT_LOADED = 9,
       TIMEOUT = 10, NO_LIBRARY = 12, LOST = 15, MISMATCH = 18, VERSION = 25 };
enum { CARDS = 64, GENERATIONS = 64, INSTANCES = 16, GLOBAL = -1, EVERY = -2 };

struct value { char key[40]; u64 number; char words[96]; };
struct field { uint32_t id, scope; int any, code; u64 number; };
struct process { uint32_t pid; u64 memory; uint32_t gi, ci; };
struct instance { uint32_t gi, ci; char name[96]; };
struct trouble { int card; char call[56]; int code; double seconds; };
struct event { u64 seq; int card; u64 type, data; uint32_t gi, ci; u64 times; };

struct card {
    struct value values[160]; int n_values;
    struct field fields[400]; int n_fields;
    struct process processes[64]; int n_processes;
    struct instance instances[INSTANCES]; int n_instances;
};
struct world {
    int loaded;              /* a script was read */
    int driver;              /* OK, NOT_LOADED, MISMATCH, UNINITIALIZED */
    int cards, generation;
    struct trouble troubles[64]; int n_troubles;
    struct event events[256]; int n_events;
    struct card card[CARDS];
};
struct slot { int card, generation, instance; };           /* what a handle points at */
struct set { u64 mask[CARDS]; int used; };
struct call { char name[56]; int card; u64 times; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct world world;
static struct slot slots[GENERATIONS][CARDS][INSTANCES + 1];
static struct set sets[32];
static struct call calls[1024];
static int n_calls, open_count, inits, shutdowns;
static u64 seq_done, seq_given;

static u64 clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000u + (u64)now.tv_nsec / 1000000u;
}

/* ---- the script ---- */

static struct value *value_of(struct card *card, const char *key)
{
    for (int i = 0; i < card->n_values; i++)
        if (!strcmp(card->values[i].key, key))
            return &card->values[i];
    return NULL;
}

static void card_line(struct card *card, const char *kind, char *rest)
{
    char key[56] = "", word[96] = "";
    int used = 0;
    unsigned a = 0, b = 0;
    u64 big = 0;
    if (!strcmp(kind, "set") && sscanf(rest, "%39s %n", key, &used) == 1) {
        struct value *value = value_of(card, key);
        if (!value && card->n_values < 160)
            value = &card->values[card->n_values++];
        if (!value)
            return;
        snprintf(value->key, sizeof value->key, "%.39s", key);
        snprintf(value->words, sizeof value->words, "%s", rest + used);
        value->number = strtoull(rest + used, NULL, 0);
    } else if (!strcmp(kind, "field") && sscanf(rest, "%u %55s %95s", &a, key, word) == 3) {
        struct field made = {a, (uint32_t)strtoul(key, NULL, 0), key[0] == '-', 0, 0};
        if (word[0] == '!')
            made.code = atoi(word + 1);
        else
            made.number = strtoull(word, NULL, 0);
        for (int i = 0; i < card->n_fields; i++)
            if (card->fields[i].id == a && card->fields[i].any == made.any && card->fields[i].scope == made.scope) {
                card->fields[i] = made;
                return;
            }
        if (card->n_fields < 400)
            card->fields[card->n_fields++] = made;
    } else if (!strcmp(kind, "process") && card->n_processes < 64) {
        struct process made = {0, 0, 0xffffffffu, 0xffffffffu};
        sscanf(rest, "%u %llu %u %u", &made.pid, &big, &made.gi, &made.ci);
        made.memory = big;
        card->processes[card->n_processes++] = made;
    } else if (!strcmp(kind, "instance") && card->n_instances < INSTANCES) {
        if (sscanf(rest, "%u %u %n", &a, &b, &used) >= 2) {
            struct instance *made = &card->instances[card->n_instances++];
            made->gi = a;
            made->ci = b;
            snprintf(made->name, sizeof made->name, "%s", rest + used);
        }
    }
}

static void line(char *text)
{
    char kind[24] = "", who[24] = "", call[56] = "";
    int used = 0, n = 0;
    double seconds = 0;
    text[strcspn(text, "\r\n")] = 0;
    if (sscanf(text, "%23s %n", kind, &used) != 1 || kind[0] == '#')
        return;
    char *rest = text + used;
    if (!strcmp(kind, "driver")) {
        world.driver = !strncmp(rest, "unloaded", 8) ? NOT_LOADED : !strncmp(rest, "mismatch", 8) ? MISMATCH
                     : !strncmp(rest, "gone", 4) ? UNINITIALIZED : OK;
    } else if (!strcmp(kind, "cards")) {
        n = atoi(rest);
        world.cards = n < 0 ? 0 : n > CARDS ? CARDS : n;
    } else if (!strcmp(kind, "generation")) {
        world.generation = atoi(rest) & (GENERATIONS - 1);
    } else if (!strcmp(kind, "event") && world.n_events < 256) {
        struct event e = {0, 0, 0, 0, 0xffffffffu, 0xffffffffu, 1};
        if (sscanf(rest, "%llu %d %lli %lli %u %u %llu", &e.seq, &e.card, (long long *)&e.type, (long long *)&e.data,
                   &e.gi, &e.ci, &e.times) >= 4)
            world.events[world.n_events++] = e;
    } else if (sscanf(rest, "%23s %n", who, &used) == 1) {
        int card = !strcmp(who, "*") ? EVERY : !strcmp(who, "-") ? GLOBAL : atoi(who);
        rest += used;
        if (!strcmp(kind, "error") || !strcmp(kind, "hang")) {
            if (world.n_troubles < 64 && sscanf(rest, "%55s %lf", call, &seconds) == 2) {
                struct trouble *made = &world.troubles[world.n_troubles++];
                made->card = card;
                snprintf(made->call, sizeof made->call, "%s", call);
                made->code = kind[0] == 'e' ? (int)seconds : 0;
                made->seconds = kind[0] == 'h' ? seconds : 0;
            }
        } else {
            for (int i = 0; i < world.cards; i++)
                if (card == EVERY || card == i)
                    card_line(&world.card[i], kind, rest);
        }
    }
}

static void look(void)                                     /* under the lock */
{
    static struct stat seen;
    static u64 looked;
    static char name[4096];
    const char *path = getenv("FAKE_NVML_SCRIPT"), *every = getenv("FAKE_NVML_RECHECK_MS");
    struct stat now;
    if (!path || !*path) {
        world.loaded = 0;
        name[0] = 0;
        return;
    }
    u64 ms = clock_ms();
    if (world.loaded && every && ms - looked < strtoull(every, NULL, 10) && !strcmp(path, name))
        return;
    looked = ms;
    if (stat(path, &now)) {
        world.loaded = 0;
        name[0] = 0;
        return;
    }
    if (world.loaded && !strcmp(path, name) && now.st_size == seen.st_size && now.st_ino == seen.st_ino
        && now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    if (strcmp(path, name))                                /* another test's world: forget what was given out */
        seq_done = seq_given = 0, n_calls = 0, inits = shutdowns = open_count = 0;
    snprintf(name, sizeof name, "%s", path);
    seen = now;
    memset(&world, 0, sizeof world);
    world.loaded = 1;
    char text[512];
    while (fgets(text, sizeof text, file))
        line(text);
    fclose(file);
}

/* ---- what every call does first ---- */

static void count(const char *name, int card)
{
    for (int i = 0; i < n_calls; i++)
        if (calls[i].card == card && !strcmp(calls[i].name, name)) {
            calls[i].times++;
            return;
        }
    if (n_calls < 1024) {
        snprintf(calls[n_calls].name, sizeof calls[n_calls].name, "%s", name);
        calls[n_calls].card = card;
        calls[n_calls++].times = 1;
    }
}

static struct trouble *trouble_of(const char *name, int card, int hangs)
{
    for (int i = 0; i < world.n_troubles; i++) {
        struct trouble *t = &world.troubles[i];
        if ((t->seconds > 0) == hangs && (t->card == card || (t->card == EVERY && card >= 0))
            && (!strcmp(t->call, name) || !strcmp(t->call, "*")))
            return t;
    }
    return NULL;
}

/* Takes the lock and keeps it if it returns OK. */
static int enter(const char *name, int card)
{
    pthread_mutex_lock(&lock);
    look();
    count(name, card);
    u64 began = clock_ms();
    struct trouble *hang;
    while (world.loaded && (hang = trouble_of(name, card, 1)) && clock_ms() - began < (u64)(hang->seconds * 1000)) {
        struct timespec nap = {0, 5000000};
        pthread_mutex_unlock(&lock);
        nanosleep(&nap, NULL);
        pthread_mutex_lock(&lock);
        look();
    }
    int code = OK;
    if (!world.loaded || !open_count)
        code = UNINITIALIZED;
    else if (world.driver != OK)
        code = world.driver == NOT_LOADED ? UNINITIALIZED : world.driver;
    struct trouble *trouble = code == OK ? trouble_of(name, card, 0) : NULL;
    if (trouble)
        code = trouble->code;
    if (code != OK)
        pthread_mutex_unlock(&lock);
    return code;
}

static int leave(int code)
{
    pthread_mutex_unlock(&lock);
    return code;
}

static int slot_of(const void *handle, struct slot *found)
{
    const char *at = handle, *first = (const char *)slots;
    if (!handle || at < first || at >= first + sizeof slots || (size_t)(at - first) % sizeof(struct slot))
        return INVALID;
    *found = *(const struct slot *)handle;
    return OK;
}

static int enter_card(const char *name, const void *handle, struct slot *at)
{
    int bad = slot_of(handle, at);
    if (bad)
        return bad;
    int code = enter(name, at->card);
    if (code == OK && (at->generation != world.generation || at->card >= world.cards))
        return leave(LOST);
    return code;
}

#define ON_CARD(handle)                                                                          \
    struct slot at;                                                                              \
    int code_ = enter_card(__func__, handle, &at);                                               \
    if (code_ != OK)                                                                             \
        return code_;                                                                            \
    struct card *card = &world.card[at.card];                                                    \
    (void)card

static int number(struct card *card, const char *key, unsigned *out)
{
    struct value *value = value_of(card, key);
    if (!value)
        return leave(NOT_SUPPORTED);
    *out = (unsigned)value->number;
    return leave(OK);
}

static int words(struct card *card, const char *key, char *out, unsigned length)
{
    struct value *value = value_of(card, key);
    if (!value)
        return leave(NOT_SUPPORTED);
    if (strlen(value->words) + 1 > length)
        return leave(SMALL);
    strcpy(out, value->words);
    return leave(OK);
}

/* ---- NVML ---- */

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    look();
    count(__func__, GLOBAL);
    struct trouble *trouble = trouble_of(__func__, GLOBAL, 0);
    int code = !world.loaded ? NO_LIBRARY : trouble ? trouble->code : world.driver == UNINITIALIZED ? OK : world.driver;
    if (code == OK) {
        open_count++;
        inits++;
        for (int g = 0; g < GENERATIONS; g++)
            for (int c = 0; c < CARDS; c++)
                for (int i = 0; i <= INSTANCES; i++)
                    slots[g][c][i] = (struct slot){c, g, i};
    }
    return leave(code);
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    int code = open_count ? OK : UNINITIALIZED;
    if (open_count) {
        open_count--;
        shutdowns++;
    }
    return leave(code);
}

const char *nvmlErrorString(int code)
{
    return code == OK ? "Success" : code == LOST ? "GPU is lost" : code == 999 ? "Unknown Error" : "Error of the fake";
}

int nvmlSystemGetDriverVersion(char *out, unsigned length)
{
    int code = enter(__func__, GLOBAL);
    if (code)
        return code;
    snprintf(out, length, "590.48.01");
    return leave(OK);
}

int nvmlDeviceGetCount_v2(unsigned *out)
{
    int code = enter(__func__, GLOBAL);
    if (code)
        return code;
    *out = (unsigned)world.cards;
    return leave(OK);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out)
{
    if (index >= CARDS)
        return INVALID;
    int code = enter(__func__, (int)index);
    if (code)
        return code;
    if ((int)index >= world.cards)
        return leave(INVALID);
    *out = &slots[world.generation][index][0];
    return leave(OK);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **out)
{
    int code = enter(__func__, GLOBAL);
    if (code)
        return code;
    for (int i = 0; i < world.cards; i++) {
        struct value *value = value_of(&world.card[i], "uuid");
        if (value && !strcmp(value->words, uuid)) {
            struct trouble *trouble = trouble_of(__func__, i, 0);
            if (trouble)
                return leave(trouble->code);
            *out = &slots[world.generation][i][0];
            return leave(OK);
        }
    }
    return leave(NOT_FOUND);
}

int nvmlDeviceGetUUID(void *device, char *out, unsigned length)
{
    ON_CARD(device);
    return words(card, "uuid", out, length);
}

int nvmlDeviceGetName(void *device, char *out, unsigned length)
{
    ON_CARD(device);
    if (at.instance) {
        snprintf(out, length, "%s", card->instances[at.instance - 1].name);
        return leave(OK);
    }
    return words(card, "name", out, length);
}

struct pci { char legacy[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; };

int nvmlDeviceGetPciInfo_v3(void *device, struct pci *out)
{
    ON_CARD(device);
    memset(out, 0, sizeof *out);
    return words(card, "pci", out->bus_id, sizeof out->bus_id);
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned *out)
{
    ON_CARD(device);
    struct value *gpu = value_of(card, "utilization"), *memory = value_of(card, "utilization.memory");
    if (!gpu)
        return leave(NOT_SUPPORTED);
    out[0] = (unsigned)gpu->number;
    out[1] = memory ? (unsigned)memory->number : 0;
    return leave(OK);
}

int nvmlDeviceGetMemoryInfo(void *device, u64 *out)
{
    ON_CARD(device);
    struct value *total = value_of(card, "memory.total"), *used = value_of(card, "memory.used");
    if (!total || !used)
        return leave(NOT_SUPPORTED);
    out[0] = total->number;
    out[1] = total->number - used->number;
    out[2] = used->number;
    return leave(OK);
}

int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *out)
{
    ON_CARD(device);
    if (sensor)
        return leave(INVALID);
    return number(card, "temperature", out);
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *out) { ON_CARD(device); return number(card, "power", out); }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *out) { ON_CARD(device); return number(card, "limit", out); }
int nvmlDeviceGetPcieReplayCounter(void *device, unsigned *out) { ON_CARD(device); return number(card, "replay", out); }
int nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned *out) { ON_CARD(device); return number(card, "pcie.gen", out); }
int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *out) { ON_CARD(device); return number(card, "pcie.width", out); }
int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *out) { ON_CARD(device); return number(card, "pcie.most", out); }
int nvmlDeviceGetNumaNodeId(void *device, unsigned *out) { ON_CARD(device); return number(card, "numa", out); }
int nvmlDeviceGetRetiredPagesPendingStatus(void *device, unsigned *out) { ON_CARD(device); return number(card, "retired.pending", out); }
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *out) { ON_CARD(device); *out = INSTANCES; return leave(OK); }

int nvmlDeviceGetClockInfo(void *device, unsigned domain, unsigned *out)
{
    ON_CARD(device);
    return number(card, domain == 2 ? "clock.memory" : "clock.sm", out);
}

static int reasons(struct card *card, u64 *out)
{
    struct value *value = value_of(card, "reasons");
    if (!value)
        return leave(NOT_SUPPORTED);
    *out = value->number;
    return leave(OK);
}

int nvmlDeviceGetCurrentClocksEventReasons(void *device, u64 *out) { ON_CARD(device); return reasons(card, out); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, u64 *out) { ON_CARD(device); return reasons(card, out); }

static int ecc(struct card *card, const char *key, u64 *out)
{
    struct value *value = value_of(card, key);
    if (!value)
        return leave(NOT_SUPPORTED);
    *out = value->number;
    return leave(OK);
}

int nvmlDeviceGetTotalEccErrors(void *device, unsigned type, unsigned counter, u64 *out)
{
    char key[40];
    ON_CARD(device);
    snprintf(key, sizeof key, "ecc.%u.%u", type, counter);                 /* 0 corrected; 0 volatile */
    return ecc(card, key, out);
}

int nvmlDeviceGetMemoryErrorCounter(void *device, unsigned type, unsigned counter, unsigned place, u64 *out)
{
    char key[40];
    ON_CARD(device);
    snprintf(key, sizeof key, "ecc.%u.%u.%u", type, counter, place);
    return ecc(card, key, out);
}

int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    ON_CARD(device);
    struct value *value = value_of(card, "remapped");                      /* four numbers */
    if (!value || sscanf(value->words, "%u %u %u %u", corrected, uncorrected, pending, failed) != 4)
        return leave(NOT_SUPPORTED);
    return leave(OK);
}

int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *out)
{
    char key[40];
    ON_CARD(device);
    struct value *links = value_of(card, "links");
    if (!links)
        return leave(NOT_SUPPORTED);
    if (link >= links->number)
        return leave(INVALID);
    snprintf(key, sizeof key, "link.%u", link);
    return number(card, key, out);
}

int nvmlDeviceGetNvLinkErrorCounter(void *device, unsigned link, unsigned counter, u64 *out)
{
    char key[40];
    ON_CARD(device);
    snprintf(key, sizeof key, "link.%u.%u", link, counter);
    return ecc(card, key, out);
}

struct field_value { uint32_t id, scope; int64_t stamp, latency; uint32_t type, code; u64 value; };

int nvmlDeviceGetFieldValues(void *device, int n, struct field_value *out)
{
    ON_CARD(device);
    for (int i = 0; i < n; i++) {
        out[i].code = NOT_SUPPORTED;
        out[i].type = 3;                                                   /* unsigned long long */
        for (int k = 0; k < card->n_fields; k++) {
            struct field *f = &card->fields[k];
            if (f->id == out[i].id && (f->any || f->scope == out[i].scope)) {
                out[i].code = (uint32_t)f->code;
                out[i].value = f->number;
                break;
            }
        }
    }
    return leave(OK);
}

static int fabric(struct card *card, char *out, unsigned version)
{
    struct value *state = value_of(card, "fabric.state"), *value;
    char *body = version ? out + 4 : out;
    uint32_t number_;
    if (!state)
        return leave(NOT_SUPPORTED);
    memset(body, 0, version == 3 ? 36 : version == 2 ? 32 : 28);
    if ((value = value_of(card, "fabric.uuid")))
        for (int i = 0; i < 16; i++) {
            unsigned byte = 0;
            sscanf(value->words + 2 * i, "%2x", &byte);
            body[i] = (char)byte;
        }
    number_ = (value = value_of(card, "fabric.status")) ? (uint32_t)value->number : 0;
    memcpy(body + 16, &number_, 4);
    number_ = (value = value_of(card, "fabric.clique")) ? (uint32_t)value->number : 0;
    memcpy(body + 20, &number_, 4);
    body[24] = (char)state->number;
    if (version) {
        number_ = (value = value_of(card, "fabric.mask")) ? (uint32_t)value->number : 0;
        memcpy(body + 28, &number_, 4);
    }
    if (version == 3)
        body[32] = (char)((value = value_of(card, "fabric.summary")) ? value->number : 0);
    return leave(OK);
}

int nvmlDeviceGetGpuFabricInfoV(void *device, char *out)
{
    uint32_t version;
    ON_CARD(device);
    memcpy(&version, out, 4);
    if (version != 0x02000024 && version != 0x03000028)
        return leave(VERSION);
    return fabric(card, out, version >> 24);
}

int nvmlDeviceGetGpuFabricInfo(void *device, char *out) { ON_CARD(device); return fabric(card, out, 0); }

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{
    ON_CARD(device);
    int code = number(card, "mig", current);
    *pending = *current;
    return code;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **out)
{
    ON_CARD(device);
    if ((int)index >= card->n_instances)
        return leave(NOT_FOUND);
    *out = &slots[at.generation][at.card][index + 1];
    return leave(OK);
}

int nvmlDeviceGetGpuInstanceId(void *device, unsigned *out)
{
    ON_CARD(device);
    *out = at.instance ? card->instances[at.instance - 1].gi : 0;
    return leave(at.instance ? OK : NOT_SUPPORTED);
}

int nvmlDeviceGetComputeInstanceId(void *device, unsigned *out)
{
    ON_CARD(device);
    *out = at.instance ? card->instances[at.instance - 1].ci : 0;
    return leave(at.instance ? OK : NOT_SUPPORTED);
}

struct process_info { unsigned pid; u64 memory; unsigned gi, ci; };

static int processes(struct card *card, unsigned *n, struct process_info *out)
{
    unsigned room = *n;
    *n = (unsigned)card->n_processes;
    if (card->n_processes && (!out || room < (unsigned)card->n_processes))
        return leave(SMALL);
    for (int i = 0; i < card->n_processes; i++) {
        struct process *p = &card->processes[i];
        out[i] = (struct process_info){p->pid, p->memory, p->gi, p->ci};
    }
    return leave(OK);
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *n, struct process_info *out)
{
    ON_CARD(device);
    return processes(card, n, out);
}

int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *n, struct process_info *out)
{
    ON_CARD(device);
    return processes(card, n, out);
}

/* ---- events ---- */

int nvmlDeviceGetSupportedEventTypes(void *device, u64 *out)
{
    ON_CARD(device);
    struct value *value = value_of(card, "events");
    if (!value)
        return leave(NOT_SUPPORTED);
    *out = value->number;
    return leave(OK);
}

int nvmlEventSetCreate(void **out)
{
    int code = enter(__func__, GLOBAL);
    if (code)
        return code;
    for (int i = 0; i < 32; i++)
        if (!sets[i].used) {
            memset(&sets[i], 0, sizeof sets[i]);
            sets[i].used = 1;
            *out = &sets[i];
            return leave(OK);
        }
    return leave(20);
}

int nvmlDeviceRegisterEvents(void *device, u64 mask, struct set *set)
{
    ON_CARD(device);
    struct value *value = value_of(card, "events");
    if (!value || (mask & ~value->number))
        return leave(NOT_SUPPORTED);
    set->mask[at.card] |= mask;
    return leave(OK);
}

int nvmlEventSetFree(struct set *set)
{
    pthread_mutex_lock(&lock);
    set->used = 0;
    return leave(OK);
}

struct event_data { void *device; u64 type, data; unsigned gi, ci; };

int nvmlEventSetWait_v2(struct set *set, struct event_data *out, unsigned timeout_ms)
{
    u64 until = clock_ms() + timeout_ms;
    for (;;) {
        int code = enter(__func__, GLOBAL);
        if (code)
            return code;
        for (int i = 0; i < world.n_events; i++) {
            struct event *e = &world.events[i];
            if (e->seq <= seq_done || e->card < 0 || e->card >= world.cards)
                continue;
            if (!(set->mask[e->card] & e->type)) {                         /* nobody asked for it */
                seq_done = e->seq;
                continue;
            }
            *out = (struct event_data){&slots[world.generation][e->card][0], e->type, e->data, e->gi, e->ci};
            if (++seq_given >= e->times) {
                seq_done = e->seq;
                seq_given = 0;
            }
            return leave(OK);
        }
        pthread_mutex_unlock(&lock);
        if (clock_ms() >= until)
            return TIMEOUT;
        const char *every = getenv("FAKE_NVML_RECHECK_MS");                /* a real wait does not poll */
        u64 ms = every ? strtoull(every, NULL, 10) : 5, left = until - clock_ms();
        ms = ms > left ? left : ms;
        struct timespec nap = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
        nanosleep(&nap, NULL);
    }
}

/* ---- for tests ---- */

u64 fake_nvml_calls(const char *name, int card)
{
    u64 times = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_calls; i++)
        if (calls[i].card == card && !strcmp(calls[i].name, name))
            times = calls[i].times;
    pthread_mutex_unlock(&lock);
    return times;
}

int fake_nvml_open(void) { return open_count; }
int fake_nvml_inits(void) { return inits; }
int fake_nvml_shutdowns(void) { return shutdowns; }
u64 fake_nvml_events_done(void) { return seq_done; }
