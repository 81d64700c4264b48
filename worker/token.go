package worker

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// oldToken is the age at which a token is renewed although most of its life is left.
	oldToken = 24 * time.Hour
	// defaultTokenSeconds is how long a token is good unless the volume says otherwise (AD8).
	defaultTokenSeconds = 3600
)

// tokenSource says which token of a pod's service account is meant.
type tokenSource struct {
	audience string
	seconds  int64
}

// heldToken is a token that was given for a pod. It is in memory alone, and in the pod's volume.
type heldToken struct {
	text           string
	renew, expires time.Time
}

// tokenFile is the file of a serviceAccountToken: the one that is there while it is young, and a new one after that. One
// that cannot be renewed stays as long as it is good.
func (r *resolver) tokenFile(ctx context.Context, s *corev1.ServiceAccountTokenProjection, kept *podVolumes) (map[string]volumeFile, error) {
	source := tokenSource{s.Audience, defaultTokenSeconds}
	if s.ExpirationSeconds != nil {
		source.seconds = *s.ExpirationSeconds
	}
	now := time.Now()
	held, ok := kept.held(source)
	if !ok || !now.Before(held.renew) {
		fresh, err := r.token(ctx, source, now)
		switch {
		case err == nil:
			held = fresh
			kept.hold(source, held)
		case !ok || !now.Before(held.expires):
			return nil, err
		default:
			held.renew = now.Add(refreshRetry)
			kept.hold(source, held)
		}
	}
	file := volumeFile{data: []byte(held.text), owner: fsUser(r.pod)}
	if file.owner != nil || fsGroup(r.pod) != nil {
		mode := int32(0o600) // who the pod is reads it, and the group by giveToGroup
		file.mode = &mode
	}
	return map[string]volumeFile{s.Path: file}, nil
}

func (r *resolver) token(ctx context.Context, source tokenSource, now time.Time) (heldToken, error) {
	if r.getter == nil {
		return heldToken{}, fmt.Errorf("no token can be had: this node has no access to objects")
	}
	text, expires, err := r.getter.Token(ctx, r.pod, source.audience, source.seconds)
	if err != nil {
		return heldToken{}, fmt.Errorf("a token of the service account %q: %w", r.pod.Spec.ServiceAccountName, err)
	}
	renew := now.Add(min(expires.Sub(now)*4/5, oldToken))
	return heldToken{text, renew, expires}, nil
}

// renewAt is when the first of a pod's tokens is due; zero: it has none.
func (v *Volumes) renewAt(pod *corev1.Pod) time.Time {
	v.mu.Lock()
	kept := v.kept[pod.UID]
	v.mu.Unlock()
	if kept == nil {
		return time.Time{}
	}
	kept.mu.Lock()
	defer kept.mu.Unlock()
	var first time.Time
	for _, t := range kept.tokens {
		if first.IsZero() || t.renew.Before(first) {
			first = t.renew
		}
	}
	return first
}

// fsUser is who all containers of the pod run as; nil: they are not all one user that the spec names.
func fsUser(pod *corev1.Pod) *int64 {
	var of *int64
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			var own *int64
			if s := pod.Spec.SecurityContext; s != nil {
				own = s.RunAsUser
			}
			if s := containers[i].SecurityContext; s != nil && s.RunAsUser != nil {
				own = s.RunAsUser
			}
			if own == nil || of != nil && *of != *own {
				return nil
			}
			of = own
		}
	}
	return of
}
