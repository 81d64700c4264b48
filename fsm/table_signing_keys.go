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

// SigningKey is a key of the cluster's, with which service accounts' tokens are
// signed. Nothing of it is an object of the API: it is in the log and in
// snapshots, as secrets are, and on the servers alone.
type SigningKey struct {
	// Private is the key in PKCS #8; empty once the key signs no more.
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
	Marshal:   packRow[SigningKey],
	Unmarshal: unpackRow[SigningKey],
	Size: func(before, _ *SigningKey, _ bool) int {
		return structBytes + len(before.Private) + len(before.Public)
	},
}
