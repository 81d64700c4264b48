// Package ecosystem shows that tools and operators of others work on Berth as they are: it builds them from their modules and runs them against a
// cluster of the real binary, with real containers. docs/ecosystem.md says what was shown. It is a module of its own, so that nothing of theirs
// is among the requirements of the product.
package ecosystem
