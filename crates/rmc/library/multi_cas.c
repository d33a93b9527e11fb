/* multi_cas: compares up to 8 words and, where all are as expected, replaces them all; multi_cas_recover
 * ends what a dead caller had begun.
 *
 * Words that are changed together have one lock word, 0 when it is free, and each caller has a record of
 * 200 bytes for as long as it lives, all in one region. The caller that holds the lock has stored the
 * offset of its record there. The steps:
 *
 *   1. compare-and-swap of the lock, 0 to the record's offset
 *   2. read all words; where one is not as expected, give the lock back, and nothing has happened
 *   3. write the record: what is to be changed
 *   4. compare-and-swap of the lock, the offset to the offset + 1: from here on it is done
 *   5. compare-and-swap of each word, expected to desired
 *   6. the lock back to 0
 *
 * Guarantees. Against others that use the same lock word it is atomic: all words change or none, and
 * none changes that was not as expected. It survives the death of its caller at any place: before
 * step 4 nothing has changed, from there on the record says what has to be. Plain readers may see some
 * words changed and others not: they read the lock word before and after (as multi_read does versions),
 * and trust what they read only where it was 0 both times and their words are not ones that return to
 * earlier values. Words must not be changed by those who do not take the lock, and each may be named once.
 *
 * It does not wait: FARSIDE_BUSY is for the caller to try again. Recover only from callers that are gone
 * for good: one that is merely slow notices in step 4 and 6, but in step 5 it could change a word that
 * meanwhile has its expected value again.
 *
 * multi_cas
 * returns   FARSIDE_OK; 1 where a word is not as expected; FARSIDE_BUSY; FARSIDE_OUT_OF_RANGE for
 *           more than 8 words, a record at 0, or an offset that is no multiple of 8; another negative
 *           number where words cannot be read or the record cannot be written.
 * emits     with 1: all words as they were. With FARSIDE_BUSY: the lock word, 8 bytes.
 * accesses  5 + n: steps 1 to 4 and 6 are one each. 3 where a word differs, 1 where the lock is taken.
 *
 * multi_cas_recover
 * returns   FARSIDE_OK where the lock is free now, by this call or already; FARSIDE_BUSY where it has
 *           another value than the one expected; FARSIDE_OUT_OF_RANGE where the record is none;
 *           another negative number where it cannot be read.
 * emits     with FARSIDE_BUSY: the lock word, 8 bytes.
 * accesses  1 before step 4; 3 + n after it.
 */
#include "farside_rmc.h"

#define WORDS_MAX 8
#define DIFFERENT 1

struct change {
    farside_u64 offset, expected, desired;
};

/* The parameters: 224 bytes, zeros after the words. */
struct parameters {
    farside_u64 region;
    farside_u64 lock;   /* the offset of the lock word */
    farside_u64 record; /* the offset of the caller's record */
    farside_u64 count;
    struct change words[WORDS_MAX];
};

/* What is left for others: 200 bytes. */
struct record {
    farside_u64 count;
    struct change words[WORDS_MAX];
};

/* What multi_cas_recover takes: 24 bytes. */
struct recovery {
    farside_u64 region;
    farside_u64 lock;  /* the offset of the lock word */
    farside_u64 found; /* the lock word as it was found */
};

/* Says who has the lock. */
static __attribute__((always_inline)) farside_i64 busy(farside_u64 holder) {
    farside_emit(&holder, sizeof holder);
    return FARSIDE_BUSY;
}

FARSIDE_PROGRAM(multi_cas)(const struct parameters *p, farside_u64 size) {
    struct farside_piece pieces[WORDS_MAX];
    farside_u64 words[WORDS_MAX] = {0};
    struct record record;
    farside_u64 region = p->region, count = p->count, own = p->record;
    if (count > WORDS_MAX)
        return FARSIDE_OUT_OF_RANGE;
    /* From here on the compiler knows nothing of it, so that the check stays before it goes to the stack. */
    asm("" : "+r"(count));
    farside_u64 offsets = own | p->lock;
    record.count = count;
    for (farside_u64 i = 0; i < WORDS_MAX; i++) {
        record.words[i] = p->words[i];
        pieces[i] = (struct farside_piece){p->words[i].offset, 8, 0};
        offsets |= p->words[i].offset;
    }
    if (own == 0 || offsets % 8)
        return FARSIDE_OUT_OF_RANGE;
    farside_u64 holder = farside_compare_swap(region, p->lock, 0, own);
    if (holder)
        return busy(holder);
    farside_i64 status = farside_read_vector(region, pieces, count, words, count * 8);
    farside_u64 different = 0;
    for (farside_u64 i = 0; i < WORDS_MAX; i++)
        different |= words[i] ^ p->words[i].expected;
    if (!status && different) {
        farside_emit(words, count * 8);
        status = DIFFERENT;
    }
    if (!status)
        status = farside_write(region, own, &record, sizeof record);
    if (status) {
        farside_compare_swap(region, p->lock, own, 0);
        return status;
    }
    holder = farside_compare_swap(region, p->lock, own, own + 1);
    if (holder != own)
        return busy(holder);
    for (farside_u64 i = 0; i < WORDS_MAX; i++)
        if (i < count)
            farside_compare_swap(region, p->words[i].offset, p->words[i].expected, p->words[i].desired);
    farside_compare_swap(region, p->lock, own + 1, 0);
    return FARSIDE_OK;
}

FARSIDE_PROGRAM(multi_cas_recover)(const struct recovery *p, farside_u64 size) {
    struct record record;
    farside_u64 region = p->region, found = p->found;
    if (!(found & 1)) {
        /* It had decided nothing. */
        farside_u64 holder = farside_compare_swap(region, p->lock, found, 0);
        return holder == found || !holder ? FARSIDE_OK : busy(holder);
    }
    farside_u64 holder = farside_load_u64(region, p->lock);
    if (holder != found)
        return holder ? busy(holder) : FARSIDE_OK;
    farside_i64 status = farside_read(region, found - 1, &record, sizeof record);
    if (status)
        return status;
    if (record.count > WORDS_MAX)
        return FARSIDE_OUT_OF_RANGE;
    for (farside_u64 i = 0; i < WORDS_MAX; i++)
        if (i < record.count)
            farside_compare_swap(region, record.words[i].offset, record.words[i].expected, record.words[i].desired);
    farside_compare_swap(region, p->lock, found, 0);
    return FARSIDE_OK;
}
