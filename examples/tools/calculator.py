"""A calculator that the model may call: agent.tools = ["search", "import:calculator.calculator"]."""

import ast
import operator as op

OPERATORS = {ast.Add: op.add, ast.Sub: op.sub, ast.Mult: op.mul, ast.Div: op.truediv, ast.USub: op.neg}


def calculator(expression: str) -> str:
    """Evaluates arithmetic, for example (1987 - 1912) / 3."""
    try:
        return f"{value(ast.parse(expression, mode='eval').body):g}"
    except Exception as error:
        return f"cannot evaluate {expression!r} ({error})"  # returned, not raised: the model can try again


def value(node: ast.AST) -> float:
    if isinstance(node, ast.Constant):
        return float(node.value)
    return float(OPERATORS[type(node.op)](*(value(n) for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr))))
