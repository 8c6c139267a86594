/* The C ABI over the tokenizers and minijinja crates: the only door between C++ and Rust.
 *
 * Handles are opaque, immutable after creation, callable from any thread; *_free takes them back.
 * Every function returns an MrtCode and, when that is not MRT_OK, one line in *error. Buffers given
 * out (MrtBytes, MrtIds) belong to the caller, who returns them with mrt_bytes_free / mrt_ids_free;
 * MrtView points into a handle and lives as long as it. No function unwinds, calls back or keeps a
 * pointer it was given. Every limit is a parameter. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MRT_ABI_VERSION 5u

typedef int32_t MrtCode;
enum {
  MRT_OK = 0,
  MRT_INVALID = 1,  /* the file, the template or the text is at fault */
  MRT_LIMIT = 2,    /* a limit that was passed in stopped the work */
  MRT_INTERNAL = 3, /* a panic, caught */
};

typedef struct {
  uint8_t* data;
  size_t size;
} MrtBytes;

typedef struct {
  uint32_t* data;
  size_t size;
} MrtIds;

typedef struct {
  const uint8_t* data;
  size_t size;
} MrtView;

typedef struct MrtTokenizer MrtTokenizer;
typedef struct MrtTemplate MrtTemplate;

/* What this library was built as; not MRT_ABI_VERSION when header and library do not match. */
uint32_t mrt_abi_version(void);
void mrt_bytes_free(MrtBytes bytes);
void mrt_ids_free(MrtIds ids);

/* ---- Tokenizer ---------------------------------------------------------------------------- */

typedef struct {
  size_t vocab_max;           /* one more than the largest id */
  size_t token_bytes_max;     /* of one token of the vocabulary or an added one */
  size_t added_bytes_max;     /* of all added tokens */
  size_t steps_max;           /* of the normalizer, and of each other part */
  size_t step_depth_max;      /* Sequences in Sequences */
  size_t step_text_bytes_max; /* of a pattern, of what replaces it, of what is put in front */
  size_t decoder_growth_max;  /* bytes that the decoder may make of one byte of a token */
  size_t framing_tokens_max;  /* that the post-processor puts around a text */
  size_t word_chars_max;      /* WordPiece's max_input_chars_per_word */
  size_t growth_max;          /* bytes that the normalizer may make of a byte of a text ... */
  size_t growth_bytes_free;   /* ... and of a text beside that */
  size_t regex_retries_max;   /* of one search, for all files of the process: the first counts */
} MrtTokenizerLimits;

/* From the bytes of tokenizer.json. Truncation and padding in the file are ignored. `added` is a
 * JSON list of further tokens, as added_tokens of the file without ids and with only_if_new. */
MrtCode mrt_tokenizer_new(const uint8_t* json, size_t json_size, const uint8_t* added,
                          size_t added_size, MrtTokenizerLimits limits, MrtTokenizer** out,
                          MrtBytes* error);
void mrt_tokenizer_free(MrtTokenizer* tokenizer);

/* One more than the largest id, so that ids index arrays of this size. */
uint32_t mrt_tokenizer_vocab_size(const MrtTokenizer* tokenizer);

enum {
  MRT_ENCODE_ADD_SPECIAL = 1,   /* what the post-processor adds: BOS, EOS */
  MRT_ENCODE_PARSE_SPECIAL = 2, /* special tokens written in the text become their ids */
  MRT_ENCODE_GUARDED = 4,       /* U+FDD0 in the text splits special tokens, then vanishes */
  MRT_ENCODE_INSIDE = 8,        /* the text goes on where a place divides a longer one */
  MRT_ENCODE_CONTENT_ONLY = 16, /* without the post-processor; see mrt_tokenizer_frame */
};
MrtCode mrt_tokenizer_encode(const MrtTokenizer* tokenizer, const uint8_t* text, size_t text_size,
                             uint32_t flags, size_t text_bytes_max, MrtIds* out, MrtBytes* error);

/* What the post-processor makes of the tokens of a text that was encoded in parts. */
MrtCode mrt_tokenizer_frame(const MrtTokenizer* tokenizer, const uint32_t* ids, size_t ids_size,
                            uint32_t flags, MrtIds* out, MrtBytes* error);

/* Places where a text can be divided so that its parts have the tokens of the whole: the first one
 * from `from` on, or text_size; the last one up to `from`, or 0. */
size_t mrt_tokenizer_place_after(const MrtTokenizer* tokenizer, const uint8_t* text,
                                 size_t text_size, size_t from);
size_t mrt_tokenizer_place_before(const MrtTokenizer* tokenizer, const uint8_t* text,
                                  size_t text_size, size_t from);

/* Ids outside the vocabulary decode to nothing. */
MrtCode mrt_tokenizer_decode(const MrtTokenizer* tokenizer, const uint32_t* ids, size_t ids_size,
                             int32_t skip_special, MrtBytes* out, MrtBytes* error);

/* 1 and *id when the vocabulary has exactly this token. */
int32_t mrt_tokenizer_token_to_id(const MrtTokenizer* tokenizer, const uint8_t* token, size_t size,
                                  uint32_t* id);

/* How the file's decoder turns tokens into text, as far as a streaming decoder must know it. */
enum {
  MRT_DECODER_BYTE_LEVEL = 0,    /* fragments are bytes; invalid UTF-8 becomes U+FFFD at the end */
  MRT_DECODER_BYTE_FALLBACK = 1, /* text, and runs of byte tokens that are text only as a whole */
  MRT_DECODER_FIRST_DIFFERS = 2, /* text; the first token decodes as mrt_tokenizer_decode says */
  MRT_DECODER_WHOLE = 3,         /* anything else: only mrt_tokenizer_decode knows */
};
typedef struct {
  int32_t kind;
  uint32_t strip_left; /* BYTE_FALLBACK: spaces to remove from the very start of the text */
} MrtDecoderInfo;
MrtDecoderInfo mrt_tokenizer_decoder_info(const MrtTokenizer* tokenizer);

enum {
  MRT_TOKEN_KNOWN = 1,   /* the id is in the vocabulary */
  MRT_TOKEN_SPECIAL = 2, /* skip_special skips it */
  MRT_TOKEN_BYTE = 4,    /* BYTE_FALLBACK: <0xNN>; the fragment is that one byte */
};
/* Flags of a token; `fragment` is what it adds to a text that has begun, `raw` its entry. */
uint32_t mrt_tokenizer_token(const MrtTokenizer* tokenizer, uint32_t id, MrtView* fragment,
                             MrtView* raw);

/* ---- Chat template ------------------------------------------------------------------------- */

typedef struct {
  size_t source_bytes_max;
  size_t output_bytes_max;
  uint64_t fuel;         /* instructions of one render */
  size_t recursion_max;  /* nested macros, loops and blocks of one render */
  size_t work_bytes_max; /* bytes that expressions of one render may read and build */
} MrtTemplateLimits;

MrtCode mrt_template_new(const uint8_t* source, size_t source_size, MrtTemplateLimits limits,
                         MrtTemplate** out, MrtBytes* error);
void mrt_template_free(MrtTemplate* tmpl);

/* `context` is a JSON object of variables. `twins` is a text of noncharacters from U+FDD0 to
 * U+FDEF, each followed by the character that it stands for: the template sees these, and the
 * output has the twins (src/text/special_guard.h). `civil_seconds` is the local wall clock (seconds
 * since 1970-01-01 00:00 local time) that strftime_now shows. */
MrtCode mrt_template_render(const MrtTemplate* tmpl, const uint8_t* context, size_t context_size,
                            const uint8_t* twins, size_t twins_size, int64_t civil_seconds,
                            MrtBytes* out, MrtBytes* error);

/* ---- Constrained output --------------------------------------------------------------------- */

typedef struct {
  uint64_t compile_fuel;   /* work of one compilation */
  uint64_t step_fuel;      /* work of one mask of the lexer */
  size_t step_items_max;   /* work of one mask of the parser */
  size_t row_items_max;    /* alternatives at one place of the text */
  size_t lexer_states_max; /* of a grammar with all its matchers */
  size_t symbols_max;      /* of a compiled grammar */
} MrtGrammarLimits;

typedef struct MrtVocabulary MrtVocabulary;
typedef struct MrtGrammar MrtGrammar;
/* One sequence. It changes, so one thread may use it at a time. */
typedef struct MrtMatcher MrtMatcher;

/* A token table, all numbers 32 bits and little-endian: "mrtable1" ("mrbytes1" for a table of bytes
 * that stands for one with more tokens, whatever a grammar calls them), the number of tokens, the
 * number of end-of-sequence tokens, their ids, then for each token 2 * size, + 1 for a special
 * token, and its bytes: what it adds to a text, a special token's name; none: never allowed. */
MrtCode mrt_vocabulary_new(const uint8_t* table, size_t table_size, MrtGrammarLimits limits,
                           MrtVocabulary** out, MrtBytes* error);
void mrt_vocabulary_free(MrtVocabulary* vocabulary);

/* "<kind>:<text>" (src/core/output_grammar.h). */
MrtCode mrt_grammar_new(const MrtVocabulary* vocabulary, const uint8_t* grammar,
                        size_t grammar_size, MrtGrammar** out, MrtBytes* error);
void mrt_grammar_free(MrtGrammar* grammar);
/* The same in the kinds and notations of the version before: GBNF has become Lark. */
void mrt_grammar_text(const MrtGrammar* grammar, MrtBytes* out);

/* At the start of the text. */
MrtCode mrt_matcher_new(const MrtGrammar* grammar, MrtMatcher** out, MrtBytes* error);
void mrt_matcher_free(MrtMatcher* matcher);
MrtCode mrt_matcher_consume(MrtMatcher* matcher, const uint32_t* tokens, size_t tokens_size,
                            MrtBytes* error);
/* Token t may come next if bit t % 32 of word t / 32 is set. After a complete text only the
 * end-of-sequence tokens are. *any is 1 if every token may come; the words are then not written.
 * MRT_INTERNAL: the engine panicked, and did again when the matcher was made anew. After an error
 * every call fails. */
MrtCode mrt_matcher_mask(MrtMatcher* matcher, uint32_t* words, size_t words_size, int32_t* any,
                         MrtBytes* error);
/* For tests: from now on the engine panics in all matchers of the grammar. */
void mrt_matcher_break_for_test(MrtMatcher* matcher);

#ifdef __cplusplus
}
#endif
