package queue

// Pods that claim volumes wait under their claims, so that a change of one finds those that
// it can help.

func claimKey(namespace, claim string) string { return namespace + "/" + claim + "\x00" }

// OfClaim calls f for every group whose pods have a claim, by its key.
func (x *Index) OfClaim(work *Work, key string, f func(g Group)) {
	work.Charge(costLook)
	x.claims.Scan(key+"\x00", func(_ string, g Group) bool {
		work.Charge(costAsk)
		f(g)
		return true
	})
}

// HasClaims says whether anybody waits who claims volumes.
func (x *Index) HasClaims() bool { return x.claims.Len() > 0 }

// EachClaim calls f for the key of every claim that somebody waits with, once for each group,
// until f returns false.
func (x *Index) EachClaim(f func(claim string, g Group) bool) {
	x.claims.Scan("", func(at string, g Group) bool { return f(at[:len(at)-len(g.Key)-1], g) })
}
