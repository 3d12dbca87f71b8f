package incluster

import (
	"testing"

	"github.com/k8s-go/workshop/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestREADME(t *testing.T) { testenv.README(t) }
