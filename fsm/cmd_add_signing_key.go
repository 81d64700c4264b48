package fsm

import (
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AddSigningKey makes a key the one that service accounts' tokens are signed
// with. The one before signs no more, its private part is forgotten, and it
// verifies until the last token that it can have signed has ended; with Revoke
// it and all others are forgotten at once, and every token with them.
//
// Refuses: 400 without an ID or a key, or for one that is too large; 409 for an
// ID that is known, or when MaxSigningKeys would verify.
type AddSigningKey struct {
	// ID is what tokens call the key.
	ID string `msgpack:"id"`
	// Private is PKCS #8, Public PKIX, both ASN.1 DER.
	Private []byte `msgpack:"private"`
	Public  []byte `msgpack:"public"`
	Revoke  bool   `msgpack:"revoke,omitempty"`
	// OnlyIfNone leaves everything as it is where a key signs: the first leader of
	// a cluster makes one.
	OnlyIfNone bool `msgpack:"only_if_none,omitempty"`
}

// Apply implements Command.
func (c *AddSigningKey) Apply(tx *Tx) Result {
	switch size := len(c.Private) + len(c.Public) + len(c.ID); {
	case c.ID == "" || len(c.Private) == 0 || len(c.Public) == 0:
		return refuseBadRequest("AddSigningKey: an ID, a private and a public key are needed")
	case size > maxKeyBytes:
		return refuseBadRequest(fmt.Sprintf("AddSigningKey: the key has %d bytes, and may have %d", size, maxKeyBytes))
	}
	keys := tx.view.signingKeys
	now := tx.view.TimeUnixNano()
	var gone, retire []string
	signing, kept := false, 0
	keys.Scan("", func(id string, k *SigningKey) bool {
		signing = signing || k.RetiredUnixNano == 0
		switch {
		case c.Revoke || !k.Verifies(now):
			gone = append(gone, id)
			return true
		case k.RetiredUnixNano == 0:
			retire = append(retire, id)
		}
		kept++
		return true
	})
	if c.OnlyIfNone && signing {
		return Result{}
	}
	conflict := func(why string) Result {
		return Result{Code: http.StatusConflict, Reason: metav1.StatusReasonConflict, Message: "AddSigningKey: " + why}
	}
	if _, known := keys.Get(c.ID); known {
		return conflict(fmt.Sprintf("there is a key %q already", c.ID))
	}
	if kept >= MaxSigningKeys {
		return conflict(fmt.Sprintf("%d keys still verify tokens: wait until some have ended, or revoke them", kept))
	}
	for _, id := range gone {
		remove(tx, keys, id)
	}
	for _, id := range retire {
		k, _ := keys.Get(id)
		put(tx, keys, id, &SigningKey{Public: k.Public, MadeUnixNano: k.MadeUnixNano, RetiredUnixNano: now})
	}
	put(tx, keys, c.ID, &SigningKey{Private: c.Private, Public: c.Public, MadeUnixNano: now})
	return Result{}
}

// SigningKeys gives every key that verifies service accounts' tokens now, by its
// ID. The keys are shared and immutable.
func (v *View) SigningKeys(f func(id string, k *SigningKey) bool) {
	now := v.TimeUnixNano()
	v.signingKeys.Scan("", func(id string, k *SigningKey) bool { return !k.Verifies(now) || f(id, k) })
}

// SigningKey is the key of an ID, if it verifies tokens now.
func (v *View) SigningKey(id string) (*SigningKey, bool) {
	k, ok := v.signingKeys.Get(id)
	return k, ok && k.Verifies(v.TimeUnixNano())
}

// SignsNow is the key that signs tokens now; ok is false while there is none.
func (v *View) SignsNow() (id string, key *SigningKey, ok bool) {
	v.signingKeys.Scan("", func(at string, k *SigningKey) bool {
		if ok = k.RetiredUnixNano == 0; ok {
			id, key = at, k
		}
		return !ok
	})
	return id, key, ok
}
