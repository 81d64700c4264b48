package bench_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/workloads/workloadstest"
)

// playsControllerManager is set where this program is started in the place of kube-controller-manager, which takes minutes to
// build: the controllers in it are Kubernetes' own.
const playsControllerManager = "BERTH_TEST_PLAYS_CONTROLLER_MANAGER"

func TestMain(m *testing.M) {
	if kubeconfig, ok := kubeconfigFlag(); ok && os.Getenv(playsControllerManager) != "" {
		if err := playControllerManager(context.Background(), kubeconfig); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func kubeconfigFlag() (path string, ok bool) {
	for _, arg := range os.Args[1:] {
		if path, ok = strings.CutPrefix(arg, "--kubeconfig="); ok {
			return path, true
		}
	}
	return "", false
}

// playControllerManager runs until it is killed.
func playControllerManager(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	return workloadstest.Run(ctx, config)
}
