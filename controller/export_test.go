package controller

import (
	appsv1 "k8s.io/api/apps/v1"

	"github.com/berth-dev/berth/fsm"
)

// Between is the rule that decides between two of a ReplicaSet's active pods.
func Between(v *fsm.View, rs *appsv1.ReplicaSet, first, second string, nowUnixNano int64) Rule {
	var pair [2]*candidate
	for _, c := range candidates(v, rs, nowUnixNano) {
		switch c.key {
		case first:
			pair[0] = c
		case second:
			pair[1] = c
		}
	}
	if pair[0] == nil || pair[1] == nil {
		return ""
	}
	_, rule := compareCandidates(pair[0], pair[1])
	return rule
}
