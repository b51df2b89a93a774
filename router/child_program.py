"""``python -m router.child_program``: how a router's parent process starts one of those that share its requests."""

from router.compiled import use_compiled


def main() -> None:
    """Entry point; as ``router.process_child.main``, compiled where it can be."""
    use_compiled()
    from router.process_child import main as run

    run()


if __name__ == "__main__":
    main()
