package apiserver

import (
	"context"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/berth-dev/berth/fsm"
)

// freshnessTimeout is how long a request waits for this server to reach a
// revision that the client has seen elsewhere; Kubernetes waits as long.
const freshnessTimeout = 3 * time.Second

// proposal is a command with the request's user.
func proposal(ctx context.Context, command fsm.Command) fsm.Proposal {
	p := fsm.Proposal{Command: command}
	if user, ok := genericapirequest.UserFrom(ctx); ok {
		p.User, p.Groups = user.GetName(), slices.Concat(user.GetGroups(), classGroups(ctx))
	}
	return p
}

// propose carries out one command, or tries it on a copy of the state if the
// request is a dry run. A refusal is returned as the error that it is.
func propose(ctx context.Context, backend Backend, command fsm.Command) (fsm.Result, error) {
	results, err := proposeAll(ctx, backend, command)
	if err != nil {
		return fsm.Result{}, err
	}
	return results[0], results[0].Err()
}

// proposeAll is propose for several commands, whose refusals are left in their
// results.
func proposeAll(ctx context.Context, backend Backend, commands ...fsm.Command) ([]fsm.Result, error) {
	proposals := make([]fsm.Proposal, len(commands))
	for i, c := range commands {
		proposals[i] = proposal(ctx, c)
	}
	if d := dryRunFrom(ctx); d != nil {
		return d.try(proposals), nil
	}
	results, err := backend.Propose(ctx, proposals...)
	if err != nil {
		return nil, apiError(err)
	}
	if len(results) != len(commands) {
		return nil, apierrors.NewInternalError(errResults)
	}
	return results, nil
}
