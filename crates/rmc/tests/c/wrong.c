/* Reads past the end of what it has read; the refusal names this line: 12. */
#include "farside_rmc.h"

FARSIDE_PROGRAM(wrong)(const farside_u64 *p, farside_u64 size) {
    farside_u64 words[4];
    farside_u64 index = p[1];
    if (farside_read(p[0], 0, words, sizeof words))
        return 0;
    if (index > 4)
        return 0;
    volatile farside_u64 *word = &words[index];
    return *word;
}
