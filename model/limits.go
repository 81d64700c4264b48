package model

import (
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// What an object may have, at the API and in what a worker says of its node.
const (
	MaxLabels        = 128 // and annotations that a worker writes
	MaxConditions    = 64  // of a node
	MaxNodeResources = 256
	// MaxPodStatusBytes bounds the status of a pod, as protobuf, whoever says it. What containers leave as their last words
	// takes a small part of it: they share MaxLastWordsBytes.
	MaxPodStatusBytes = 256 << 10
	// MaxStatusTextBytes bounds a text in a status that a worker says.
	MaxStatusTextBytes = 4 << 10
	// MaxStatusList bounds a list in a status that a worker says.
	MaxStatusList = 128
	// MaxNodeAnswerBytes bounds what a worker answers to somebody who asks about its node, without the head.
	MaxNodeAnswerBytes = 16 << 20
	// MaxLastWordsBytes is shared by the containers of a pod, for what each left when it ended: as in Kubernetes.
	MaxLastWordsBytes = 12 << 10
	// MaxSetPods bounds the pods of a StatefulSet: the controller makes all that a set lacks in memory, before it creates the first.
	MaxSetPods = 10_000
	// MaxSetBytes bounds the same by what the template takes as JSON, once for each pod.
	MaxSetBytes = 64 << 20
)

// MostSetPods is how many pods a StatefulSet may have whose template takes so many bytes as JSON.
func MostSetPods(templateBytes int) int32 {
	return int32(min(MaxSetPods, MaxSetBytes/max(templateBytes, 1)))
}

// CheckPodStatusBytes refuses the status of a pod that takes so many bytes as protobuf; nil: it may be so large.
func CheckPodStatusBytes(n int) *field.Error {
	if n <= MaxPodStatusBytes {
		return nil
	}
	return field.TooLong(field.NewPath("status"), "", MaxPodStatusBytes)
}

// CutText shortens a text to so many bytes, and makes it one that can be stored: that first, since it makes it longer.
func CutText(s string, most int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}
