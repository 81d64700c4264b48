// Package raftlog keeps Raft's log in files that are only appended to: a
// directory of segments, each with the entries that follow the last one's.
// It is a raft.LogStore without gaps.
//
// A segment, NNNNNNNNNNNNNNNNNNNN.log by the index of its first entry:
//
//	header  "BERTHLOG", format (4 bytes), index of the first entry (8), CRC-32C of these (4),
//	        seed, random (4), CRC-32C of all these (4)
//	frames  length of the body (4), CRC-32C of seed, length and body (4), body
//	body    index (8), index of the first entry of the same write (8), term (8),
//	        time of appending in nanoseconds (8), type (1), length of the extensions (4),
//	        extensions, data
//
// Files of format 1 have no seed; they are read, and written to their end. The seed keeps what users have written into entries from being
// taken for frames.
//
// Behind the last frame there may be zeroes. Numbers are little endian. Every frame is checked when the log is opened and
// each time that it is read. What is damaged is a *DamageError, which names the
// file; nothing is mapped into memory, so that no fault of the disk is a signal.
//
// A write that was cut off leaves a damaged frame at the end as well. Whoever
// opens the log says up to which entry it was told that they are kept: from
// there on a damaged frame is such a write and is cut off, before it is damage.
//
// What it must never do: return from a write that is not on the disk, give out
// bytes that are not those that were stored, or know what an entry means.
package raftlog
