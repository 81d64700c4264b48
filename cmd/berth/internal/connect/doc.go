// Package connect takes commands to a Berth server: it reads where the servers
// are, tries the next when one is down, and says in one sentence what is wrong
// when none can be reached.
//
// It must never repeat a request that a server may have carried out, unless the
// request only reads.
package connect
