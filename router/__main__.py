"""``python -m router``."""

from collections.abc import Sequence

from router.compiled import use_compiled


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; as ``router.program.main``, compiled where it can be."""
    use_compiled()
    from router.program import main as run

    run(argv)


if __name__ == "__main__":
    main()
