package fsm

import (
	"time"

	"github.com/berth-dev/berth/codec"
)

const (
	// MaxTokenSeconds is the longest life of a service account's token. A key
	// that signs no more verifies for so long.
	MaxTokenSeconds = 7 * 24 * 3600
	// MaxSigningKeys is how many keys verify tokens at a time, the one that signs
	// among them.
	MaxSigningKeys = 16
	// maxKeyBytes bounds one key in its encoding.
	maxKeyBytes = 8 << 10
)

// SinceSealed is the version of the rules from which on what servers propose may be sealed: an envelope in the
// place of what an object holds, and of a key's private part. The state machine goes by it as by any other
// bytes; but a server that does not know of it would show envelopes to whoever asks.
const SinceSealed = 12

// SigningKey is a key of the cluster's, with which service accounts' tokens are
// signed. Nothing of it is an object of the API: it is in the log and in
// snapshots, as secrets are, and on the servers alone.
type SigningKey struct {
	// Private is the key in PKCS #8, or the envelope that it is in; empty once the
	// key signs no more.
	Private []byte `msgpack:"private,omitempty"`
	// Public is in PKIX, ASN.1 DER.
	Public []byte `msgpack:"public"`
	// MadeUnixNano is when it began to sign, RetiredUnixNano when it ceased to; 0:
	// it signs.
	MadeUnixNano    int64 `msgpack:"made_unix_nano"`
	RetiredUnixNano int64 `msgpack:"retired_unix_nano,omitempty"`
}

// Verifies says whether a token that the key has signed may be good at a time:
// the key signs, or the last token that it can have signed has not ended.
func (k *SigningKey) Verifies(atUnixNano int64) bool {
	return k.RetiredUnixNano == 0 || atUnixNano-k.RetiredUnixNano < MaxTokenSeconds*int64(time.Second)
}

var signingKeyTable = &tableDef[*SigningKey]{
	Name:      "signingkeys",
	Canonical: codec.Canonical[*SigningKey](codec.Msgpack),
	Bytes:     func(_ *live, k *SigningKey) int { return smallBytes + len(k.Private) + len(k.Public) },
	Marshal:   packRow[SigningKey],
	Unmarshal: unpackRow[SigningKey],
	Size: func(before, _ *SigningKey, _ bool) int {
		return structBytes + len(before.Private) + len(before.Public)
	},
}
