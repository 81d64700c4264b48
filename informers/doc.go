// Package informers presents the state to those who expect informers of client-go's:
// Kubernetes' controllers and admission plugins. A list is read from the latest view, and
// events are the change feed; nothing is listed, watched or kept twice.
//
// The objects that are given are the state's own rows. They must never be changed: a
// reader that did would make this server differ from the others.
package informers
