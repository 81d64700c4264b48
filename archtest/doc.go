// Package archtest holds the rules on the shape of the source that a compiler
// does not check: which package may import which, what the deterministic core
// must never call, and the habits that keep the code easy to find one's way in.
// Every failure says the rule's reason.
//
// The package has nothing but tests and must never be imported.
package archtest
