package model

import (
	"crypto/sha256"

	corev1 "k8s.io/api/core/v1"
)

// AddedAffinity is what a profile asks of the nodes of all of its pods, beside what they ask themselves, compiled. As in
// kube-scheduler it decides nothing about which nodes are domains of a spread constraint.
type AddedAffinity struct {
	sum       string        // of what is asked
	required  *nodeSelector // nil: nothing
	preferred *nodeSelector
	asks      int // see Class.Asks
}

// CompileAddedAffinity returns nil where nothing is asked. What does not parse matches no node, and is not preferred.
func CompileAddedAffinity(a *corev1.NodeAffinity) *AddedAffinity {
	if a == nil || a.RequiredDuringSchedulingIgnoredDuringExecution == nil && len(a.PreferredDuringSchedulingIgnoredDuringExecution) == 0 {
		return nil
	}
	b, err := a.Marshal()
	if err != nil {
		panic("model: marshalling an affinity: " + err.Error()) // see signer.message
	}
	sum := sha256.Sum256(b)
	return &AddedAffinity{
		sum: string(sum[:]), asks: asksOf(a),
		required:  compileWholeSelector(a.RequiredDuringSchedulingIgnoredDuringExecution),
		preferred: compileNodePreferences(a.PreferredDuringSchedulingIgnoredDuringExecution),
	}
}

// WithAddedAffinity returns the class that in addition asks of nodes what its profile does; c itself where that is nothing.
func (c *Class) WithAddedAffinity(a *AddedAffinity) *Class {
	if a == nil {
		return c
	}
	d := *c
	d.added = a
	d.Signature, d.Shape = rehash(c.Signature, "added"+a.sum), rehash(c.Shape, "added"+a.sum)
	return &d
}

// admits says whether a node is one that the profile lets its pods have.
func (a *AddedAffinity) admits(n *corev1.Node) bool {
	return a == nil || a.required == nil || a.required.match(n)
}
